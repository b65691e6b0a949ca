"""What is read off a ladder's results."""

import json
import math

import pytest

from longhaul.plan.ladder.analysis import Analysis, analyse, as_data, as_markdown
from longhaul.plan.ladder.search import Idea, LadderPlan, LadderRun, Outcome, next_run
from longhaul.plan.ladder.variants import LadderSize

IDEAS = (Idea("fading", ("a.b=1",)), Idea("vital", ("a.c=1",)))
PLAN = LadderPlan((1_000, 4_000, 16_000, 64_000), 0.1, (1, 2), IDEAS)
SIZES = [LadderSize(1, 2**k, n, 10, 5, 500, {}) for k, n in enumerate(PLAN.parameters)]


def world(run: LadderRun, surprise: float = 0.0) -> Outcome:
    """One idea gains less with each doubling; without the other nothing trains."""
    loss = 1.5 + 2.0 * PLAN.parameters[run.size] ** -0.2 + 0.001 * run.seed
    loss += 0.01 * math.log2(run.rate / 0.1) ** 2
    gain = {"": 0.0, "fading": 0.1 - 0.02 * run.size, "vital": math.inf}[run.without]
    broken = run.rate > 1.0
    return Outcome(
        loss + gain + 0.0005 * run.seed * bool(run.without) + (surprise if run.size == 3 else 0.0),
        untrained=4.0,
        worst=5.0 if broken else 3.0,
        finite=True,
    )


def analysis(surprise: float = 0.0) -> Analysis:
    results: dict[LadderRun, Outcome] = {}
    while (run := next_run(PLAN, results)) is not None:
        results[run] = world(run, surprise)
    return analyse(PLAN, SIZES, results)


def test_rates_losses_and_gains_are_those_of_the_world() -> None:
    found = analysis()
    assert [result.rate for result in found.sizes] == pytest.approx([0.1] * 4, rel=1e-3)
    assert [result.diverging for result in found.sizes] == [1.6, 1.6, 1.6, None]
    fading, vital = found.gains
    assert fading.by_size[1] == pytest.approx((0.0805, 0.081))
    assert fading.per_doubling.value == pytest.approx(-0.01)  # sizes are two doublings apart
    assert (fading.verdict, vital.verdict) == ("fades", "diverges without it")


def test_a_law_that_goes_on_comes_true_and_one_that_breaks_does_not() -> None:
    assert analysis().came_true
    assert not analysis(surprise=0.2).came_true
    assert "**outside**" in as_markdown(analysis(surprise=0.2))


def test_the_tables_name_every_size_rate_and_idea() -> None:
    text = as_markdown(analysis())
    for word in ("1x1", "1x8", "0.1 (predicted)", "fading", "fades", "**inside**", "✗"):
        assert word in text
    for line in text.splitlines():
        assert line.startswith("|") or "|" not in line


def test_the_json_is_read_by_every_parser() -> None:
    data = json.loads(json.dumps(as_data(analysis())), parse_constant=pytest.fail)
    assert data["came_true"] is True
    assert data["gains"][1]["by_size"][0] == ["inf", "inf"]


def test_a_size_without_a_finite_loss_leaves_no_prediction() -> None:
    results: dict[LadderRun, Outcome] = {}
    while (run := next_run(PLAN, results)) is not None:
        out = world(run)
        lost = run.size == 1 and run.seed == 2
        results[run] = Outcome(math.nan, 4.0, 3.0, finite=False) if lost else out
    found = analyse(PLAN, SIZES, results)
    assert found.predicted is None
    assert not found.came_true
    assert "no prediction" in as_markdown(found)
