"""docs/planning.md shows what the results hold, and the results are what the code computes."""

import json
from statistics import median

import pytest
from benchmarks.common import RESULTS, block
from benchmarks.planning import BAR, PAGE, ROWS, goodput_of, lines, peak_gib, tables
from benchmarks.planning_rows import ANCHORS, PEAKS

from longhaul.plan.step_time import FITTED

STORED = json.loads((RESULTS / "planning.json").read_text())


def test_the_document_shows_the_stored_results() -> None:
    for name, text in tables(STORED).items():
        assert block(PAGE, name).strip() == text.strip()


def test_the_stored_results_are_what_the_code_computes() -> None:
    stored = {row["name"] + row["device"]: row for row in STORED["rows"]}
    computed = lines()
    assert len(computed) == len(stored) == len(ROWS)
    for line in computed:
        assert line.error == pytest.approx(stored[line.name + line.device]["error"], abs=1e-6)
    for peak, known in zip(PEAKS, STORED["peaks"], strict=True):
        assert peak_gib(peak) == pytest.approx(known["estimated_gib"])


def test_a_row_is_predicted_without_its_own_figure() -> None:
    every = lines()
    for line in every:
        others = [one.own_efficiency for one in every
                  if one.device[:4] == line.device[:4] and one is not line]  # fmt: skip
        assert line.efficiency == pytest.approx(median(v for v in others if v is not None))


def test_the_plan_uses_the_efficiencies_of_the_rows() -> None:
    for device, efficiency in FITTED.items():
        family = "h100" if device == "h200" else device
        own = [line.own_efficiency for line in lines() if line.device.startswith(family)]
        assert efficiency == pytest.approx(median(v for v in own if v is not None), abs=0.005)


def test_no_miss_goes_unexplained() -> None:
    text = PAGE.read_text()
    missed = {line.name for line in lines() if line.anchor and abs(line.error) > BAR}
    assert missed, "then the page must not speak of misses"
    for row in ANCHORS:
        assert (row.name in missed) == bool(row.outlier), row.name
        if row.name in missed:
            assert f"**{row.name.replace('GPT-2 1.56B', '1.56B')}**" in text
    assert len(ANCHORS) >= 10


def test_goodput_is_taken_out_only_of_hours_with_failures() -> None:
    for row in ROWS:
        assert (goodput_of(row) < 1) == row.downtime
        assert goodput_of(row) > 0.8
