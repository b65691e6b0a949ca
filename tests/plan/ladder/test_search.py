"""What a scaling ladder trains next, on invented losses."""

import math
from collections.abc import Callable

import pytest

from longhaul.core.errors import NeedsPerson
from longhaul.plan.ladder.search import (
    REACH,
    Idea,
    LadderPlan,
    LadderRun,
    Outcome,
    RateSearch,
    best_rates,
    diverged,
    next_run,
    search_rates,
)

IDEA = Idea("gate", ("model.gate=false",))
PLAN = LadderPlan((1_000, 4_000, 16_000, 64_000), 0.1, (1, 2), (IDEA,))
BROKEN = Outcome(math.inf, 4.0, math.inf, finite=False)


def outcome(loss: float, worst: float = 3.0) -> Outcome:
    return Outcome(loss, untrained=4.0, worst=worst, finite=True)


def valley(best: float, breaks_at: int) -> Callable[[int], Outcome]:
    """Losses by doublings: lowest at `best`, broken from `breaks_at` on."""
    return lambda d: BROKEN if d >= breaks_at else outcome(2.0 + 0.02 * (d - best) ** 2)


def searched(
    losses: Callable[[int], Outcome], start: int = 0, hint: int | None = None
) -> tuple[RateSearch, list[int]]:
    tried: dict[int, Outcome] = {}
    while (search := search_rates(tried, start, hint)).following is not None:
        assert search.following not in tried
        tried[search.following] = losses(search.following)
    return search, list(tried)


@pytest.mark.parametrize("best", [-5, -1, 0, 2, 5])
def test_the_best_rate_is_bracketed_wherever_it_lies_and_the_lowest_diverging_one_found(
    best: int,
) -> None:
    search, tried = searched(valley(best, best + 4))
    assert (search.best, search.diverging) == (best, best + 4)
    assert {best - 1, best + 1, best + 3, best + 4} <= set(tried)


def test_a_start_that_diverges_leads_downwards() -> None:
    search, _ = searched(valley(-4, -2))
    assert (search.best, search.diverging) == (-4, -2)


def test_a_hint_saves_the_rates_between() -> None:
    blind, all_tried = searched(valley(0, 6))
    hinted, tried = searched(valley(0, 6), hint=6)
    assert blind == hinted
    assert sorted(tried) == [-1, 0, 1, 5, 6]
    assert len(all_tried) > len(tried)


@pytest.mark.parametrize("hint", [3, 4, 8, 9])
def test_a_wrong_hint_is_mended(hint: int) -> None:
    assert searched(valley(0, 6), hint=hint)[0].diverging == 6


def test_where_every_rate_diverges_the_search_ends_and_a_person_is_told() -> None:
    search, tried = searched(lambda _: BROKEN)
    assert search.best is None
    assert min(tried) == -REACH
    results = {LadderRun(0, PLAN.rate_at(d), 1): BROKEN for d in tried}
    with pytest.raises(NeedsPerson, match="1,000 parameters every learning rate"):
        next_run(PLAN, results)


def test_where_no_rate_diverges_the_search_ends_at_its_reach() -> None:
    search, tried = searched(valley(0, 99))
    # Far above the best, too little is learned, which counts too.
    assert search.diverging == 8
    never, _ = searched(lambda d: outcome(2.0 + 1e-6 * abs(d)))
    assert (never.best, never.diverging) == (0, None)
    assert max(tried) <= REACH


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (outcome(2.1), False),
        (Outcome(math.nan, 4.0, 3.0, finite=True), True),
        (Outcome(2.1, 4.0, 3.0, finite=False), True),
        (outcome(2.1, worst=4.1), True),  # it came back, but was worse than untrained
        (outcome(3.1), True),  # it has learned 0.9 of the 2 nats that the best rate did
        (outcome(2.9), False),
    ],
)
def test_what_counts_as_diverged(result: Outcome, expected: bool) -> None:
    assert diverged(result, best=outcome(2.0)) is expected


def test_a_low_rate_that_learns_little_has_not_diverged() -> None:
    search, _ = searched(lambda d: outcome(3.9 if d < 0 else 2.0 + 0.01 * d) if d < 3 else BROKEN)
    assert (search.best, search.diverging) == (0, 3)


def world(run: LadderRun) -> Outcome:
    """The best rate falls with the root of the width; rates 20 times higher break."""
    best = 0.08 * (1_000 / PLAN.parameters[run.size]) ** 0.25
    if run.rate > 20 * best:
        return BROKEN
    floor = 1.5 + 2.0 * PLAN.parameters[run.size] ** -0.2
    gain = 0.1 if run.without else 0.0
    noise = 0.001 * (run.seed - 1.5)
    return outcome(floor + gain + noise + 0.01 * math.log2(run.rate / best) ** 2)


def finished_ladder() -> dict[LadderRun, Outcome]:
    results: dict[LadderRun, Outcome] = {}
    while (run := next_run(PLAN, results)) is not None:
        assert run not in results
        results[run] = world(run)
        assert len(results) < 100
    return results


def test_a_whole_ladder_finds_the_rates_of_its_world_and_predicts_the_next() -> None:
    rates = best_rates(PLAN, finished_ladder())
    expected = [0.08 * (1_000 / parameters) ** 0.25 for parameters in PLAN.parameters]
    assert rates == pytest.approx(expected, rel=0.01)


def test_the_last_size_is_trained_at_the_predicted_rate_alone() -> None:
    results = finished_ladder()
    rates = best_rates(PLAN, results)
    last = [run for run in results if run.size == 3]
    assert {run.rate for run in last} == {rates[3]}
    assert {(run.seed, run.without) for run in last} == {(1, ""), (2, ""), (1, "gate"), (2, "gate")}


def test_the_ideas_come_when_the_prediction_has_been_tried() -> None:
    order = list(finished_ladder())
    first_idea = next(number for number, run in enumerate(order) if run.without)
    assert {run.size for run in order[:first_idea]} == {0, 1, 2, 3}
    assert all(run.without for run in order[first_idea:])


def test_what_is_there_already_is_not_trained_again() -> None:
    results = finished_ladder()
    assert next_run(PLAN, results) is None
    at_best = [run for run in results if run.rate in best_rates(PLAN, results)]
    for run in at_best:
        others = {other: out for other, out in results.items() if other != run}
        assert next_run(PLAN, others) == run


def test_beside_a_neighbour_that_diverges_the_best_rate_tried_is_taken() -> None:
    losses = {-1: outcome(2.2), 0: outcome(2.0), 1: BROKEN}
    results = {LadderRun(0, PLAN.rate_at(d), 1): out for d, out in losses.items()}
    assert next_run(PLAN, results) == LadderRun(0, 0.1, 2)
