"""The document's tables are those of the result file."""

import json

import pytest
from benchmarks.common import RESULTS, block
from benchmarks.simulation import DOCUMENT, tables

BODY = json.loads((RESULTS / "simulation.json").read_text())


@pytest.mark.parametrize("name", tables(BODY["parts"]))
def test_tables_are_those_of_the_result_file(name):
    assert block(DOCUMENT, name).strip() == tables(BODY["parts"])[name].strip()


def test_what_was_asked_for_is_met():
    assert all(bar["met"] is not False for bar in BODY["bars"])
