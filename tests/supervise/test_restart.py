from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.config.recover import SuperviseSection
from longhaul.supervise.restart import (
    ATTEMPTS_AT_ONE_STEP,
    CURED_BY_TIME,
    PATIENCE_S,
    Failure,
    next_plan,
    without_progress,
)

SETTINGS = SuperviseSection()
USABLE = (100, 200, 300)


def failed(*steps: int | None, cause: str = "killed", remedy: str = "restart") -> list[Failure]:
    return [Failure(cause, remedy, step, 1000.0 * n) for n, step in enumerate(steps)]


def plan(failures, usable=USABLE, exit_code=1, settings=SETTINGS):
    return next_plan(failures, usable, exit_code, settings)


def test_a_first_failure_is_answered_at_once() -> None:
    decided = plan(failed(310))
    assert decided.restart
    assert decided.wait_s == 0
    assert decided.poison is None


def test_failures_that_make_way_are_never_counted_together() -> None:
    assert plan(failed(*range(310, 650, 4))).restart
    assert plan(failed(*range(310, 650, 4))).wait_s == 0


def test_the_same_failure_at_the_same_step_goes_further_back_and_then_stops() -> None:
    story, done = failed(310), []
    while (decided := plan(story)).restart:
        done.append(decided)
        story[-1] = replace(story[-1], went_back=decided.poison is not None)
        story.append(Failure("killed", "restart", 310, story[-1].time + 10))
    assert [step.poison for step in done] == [None, None, 300]
    assert done[1].wait_s > 0
    assert decided.exit_code == 17
    assert "from an older checkpoint too" in decided.reason


def test_going_back_that_helped_is_forgotten_once_there_is_progress() -> None:
    story = failed(310, 310, 310)
    story[-1] = replace(story[-1], went_back=True)
    story += [Failure("killed", "restart", 450, 5000.0), Failure("killed", "restart", 450, 5001.0)]
    decided = plan(story)
    assert decided.restart
    assert decided.poison is None


def test_the_last_checkpoint_is_never_poisoned() -> None:
    for usable in ((), (300,)):
        decided = plan(failed(310, 310, 310), usable)
        assert not decided.restart
        assert decided.exit_code == 17
        assert "no older checkpoint" in decided.reason


def test_attempts_that_do_not_get_as_far_as_training_count_as_no_progress() -> None:
    decided = plan(failed(310, None, 310))
    assert decided.poison == 300
    decided = plan(failed(None, None, None), ())
    assert not decided.restart
    assert "before any step, 3 times" in decided.reason


def test_kills_at_random_steps_are_not_one_crash() -> None:
    assert plan(failed(310, 305, 301)).poison is None


def test_another_cause_in_between_is_another_story() -> None:
    story = [*failed(310, 310), Failure("crash", "restart", 310, 9000.0)]
    assert plan(story).poison is None


@pytest.mark.parametrize(("code", "expected"), [(2, 2), (3, 3), (17, 17), (1, 17), (-9, 17)])
def test_a_persons_mistake_is_not_retried(code: int, expected: int) -> None:
    decided = plan(failed(0, cause="recipe-wrong", remedy="stop"), exit_code=code)
    assert not decided.restart
    assert decided.exit_code == expected


def test_a_cordoned_machine_is_not_used_again() -> None:
    assert not plan(failed(310, cause="gpu-lost", remedy="cordon")).restart


def cordoning(*machines: str) -> list[Failure]:
    """Machines that are lost one after the other before any step, each replaced by another."""
    return [
        Failure("gpu-lost", "restart", None, 600.0 * n, cordoned=name)
        for n, name in enumerate(machines)
    ]


def test_machines_that_are_lost_one_by_one_cost_neither_checkpoints_nor_the_run() -> None:
    """At 16,384 GPUs several are lost within a start of twenty minutes now and then."""
    story = cordoning("a", "b", "c", "d", "e")
    for end in range(1, len(story) + 1):
        decided = plan(story[:end], settings=SuperviseSection(restarts_per_day=3))
        assert (decided.restart, decided.poison, decided.wait_s) == (True, None, 0.0)
    # The same without a machine to blame is incident M18.
    nameless = plan(cordoning("", "", ""))
    assert nameless.poison == 300


def test_the_budget_is_counted_over_a_day() -> None:
    few = SuperviseSection(restarts_per_day=3)
    assert plan(failed(1, 2, 3), settings=few).restart
    spent = plan(failed(1, 2, 3, 4), settings=few)
    assert not spent.restart
    assert "restarts_per_day is 3" in spent.reason
    rare = [Failure("killed", "restart", n, n * 43_200.0) for n in range(50)]
    assert plan(rare, settings=few).restart


@given(
    st.lists(st.tuples(st.sampled_from(["killed", "crash"]), st.integers(0, 3)), min_size=1),
    st.lists(st.integers(0, 500), unique=True),
)
def test_whatever_happens_no_more_than_so_many_tries_are_made_at_one_step(causes, usable) -> None:
    story: list[Failure] = []
    for number, (cause, step) in enumerate(causes):
        story.append(Failure(cause, "restart", step, float(number)))
        decided = plan(story, usable)
        if not decided.restart:
            return
        story[-1] = replace(story[-1], went_back=decided.poison is not None)
        assert decided.poison in (None, *usable)
    trailing = 0
    for failure in reversed(story):
        if (failure.cause, failure.step) != (story[-1].cause, story[-1].step):
            break
        trailing += 1
    assert trailing <= ATTEMPTS_AT_ONE_STEP


@pytest.mark.parametrize("cause", CURED_BY_TIME)
def test_what_time_cures_costs_no_checkpoint_and_no_budget_but_patience_ends(cause: str) -> None:
    spent = SuperviseSection(restarts_per_day=1)
    story = [Failure("killed", "restart", 310, 0.0)]
    waits = []
    while (decided := plan(story := [*story, away(cause, story)], settings=spent)).restart:
        assert decided.poison is None
        waits.append(decided.wait_s)
    assert waits[:4] == [1, 2, 4, 8]
    assert max(waits) == 60
    assert story[-1].time - story[1].time > PATIENCE_S
    assert (decided.exit_code, f"{cause} for 31 min" in decided.reason) == (17, True)


def away(cause: str, story: list[Failure]) -> Failure:
    return Failure(cause, "restart", None, story[-1].time + 100)


def test_a_node_that_goes_in_the_middle_of_training_counts_like_any_failure() -> None:
    story = [away("node-gone", failed(310)), *failed(310, 310, cause="node-gone")]
    assert plan([*story, *failed(310, cause="node-gone")]).poison == 300


def test_starts_that_time_has_cured_are_in_no_later_count() -> None:
    gone = [Failure("node-gone", "restart", None, 10.0 * n) for n in range(1, 6)]
    story = [*failed(310), *gone, Failure("killed", "restart", 320, 100.0)]
    assert plan(story, settings=SuperviseSection(restarts_per_day=2)).restart
    assert not plan(story, settings=SuperviseSection(restarts_per_day=1)).restart
    again = [*failed(310), *gone, Failure("killed", "restart", 310, 100.0)]
    assert plan(again).wait_s > 0, "the same failure at the same step, whatever lay between"


def test_deaths_that_training_went_on_after_are_not_counted_together() -> None:
    """Of replicas: one may die every minute while the others train on."""
    every_minute = [Failure("killed", "restart", 50 * n, 60.0 * n) for n in range(500)]
    assert without_progress(every_minute) == every_minute[-1:]
    stuck = [*every_minute, *(Failure("killed", "restart", None, 3e4 + n) for n in range(3))]
    assert len(without_progress(stuck)) == 4
