"""What Muon sends during the backward pass of several ranks leads to the same bits."""

import json
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fork_server import SERVER

LAYOUTS = {
    "fsdp3": {"shard": 3},
    "tp2": {"tensor": 2},
    "hsdp2x2": {"shard": 2, "replicate": 2},
    "pp2 fsdp2": {"pipeline": 2, "shard": 2},
}
DEADLINE_S = 180


@cache
def seen() -> dict[str, Any]:
    """What came of every layout, early and late."""
    with TemporaryDirectory() as folder:
        result = Path(folder, "result.jsonl")
        program = str(Path(__file__).with_name("early_ranks.py"))
        words = [program, json.dumps(LAYOUTS), str(result)]
        process = SERVER.start(words, Path.cwd(), os.environ)
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, output
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        rows = [json.loads(line) for line in result.read_text().splitlines()]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_and_momenta_are_the_same_to_the_bit_a_masked_step_included(layout: str) -> None:
    row = seen()[layout]
    assert row["late"]["masked"] == [False, False, True, False]
    for how in ("early", "in one message"):
        assert row[how] | {"during": 0} == row["late"] | {"during": 0}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_matrices_set_out_before_the_backward_pass_has_ended(layout: str) -> None:
    """Four of each of three layers, or of the two that a stage has."""
    matrices = 8 if layout.startswith("pp2") else 12
    assert seen()[layout]["early"]["during"] == [matrices] * 4
    assert seen()[layout]["late"]["during"] == [0] * 4
