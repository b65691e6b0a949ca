import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeClock
from longhaul.config.load import load_recipe
from longhaul.core.records import Event, StepRecord
from longhaul.store import save_interval
from longhaul.store.save_interval import (
    UNMEASURED_STEPS,
    Interval,
    SaveInterval,
    best_interval,
    between_failures,
    daly_interval,
)


def wall_time(interval_s: float, cost_s: float, between_s: float) -> float:
    """Daly's model, equation 13, per second of training: failures come at any time, saves too."""
    return between_s * math.expm1((interval_s + cost_s) / between_s) / interval_s


@given(st.floats(0.01, 600), st.floats(600, 1e7))
def test_no_other_interval_loses_much_less(cost_s: float, between_s: float) -> None:
    ours = wall_time(daly_interval(cost_s, between_s), cost_s, between_s)
    others = [
        wall_time(cost_s * 1.02**power, cost_s, between_s)
        for power in range(-200, 1200)
        if cost_s * 1.02**power < 30 * between_s
    ]
    assert ours <= 1.02 * min(others)


def test_youngs_formula_for_a_cheap_save() -> None:
    assert daly_interval(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=2e-3)


def test_saving_that_costs_more_than_training_between_failures() -> None:
    assert daly_interval(100.0, 50.0) == 50.0
    assert daly_interval(100.0, 10.0) == 10.0


@given(st.floats(0.01, 100), st.floats(1e3, 1e7))
def test_dearer_saves_are_rarer_and_more_failures_bring_more_saves(
    cost_s: float, between_s: float
) -> None:
    assert daly_interval(cost_s, between_s) <= daly_interval(2 * cost_s, between_s)
    assert daly_interval(cost_s, between_s) <= daly_interval(cost_s, 2 * between_s)


def test_without_a_failure_the_prior_holds_and_every_failure_counts() -> None:
    assert between_failures(0, 0.0, 1) == 15_000 * HOUR
    assert between_failures(0, 0.0, 1000) == 15 * HOUR
    # OPT-175B: 105 restarts in 60 days of 992 GPUs.
    assert between_failures(105, 60 * 24 * HOUR, 992) == pytest.approx(13.7 * HOUR, rel=0.01)


def test_what_was_not_measured_gives_the_plain_default() -> None:
    assert best_interval().steps == UNMEASURED_STEPS
    assert best_interval(stalls_s=[1.0]).steps == UNMEASURED_STEPS
    assert best_interval(steps_s=[1.0] * 9).steps == UNMEASURED_STEPS
    nonsense = best_interval(stalls_s=[math.nan, math.inf], steps_s=[1.0] * 9)
    assert nonsense.steps == UNMEASURED_STEPS


def test_the_formula_in_steps() -> None:
    best = best_interval(
        stalls_s=[2.0, 2.0, 30.0], saves_s=[5.0], steps_s=[4.0] * 10,
        failures=9, uptime_s=100 * HOUR, devices=1000,
    )  # fmt: skip
    assert best.steps == round(daly_interval(2.0, 11.5 * HOUR) / 4)
    assert "9 failures: one failure in 11 h 30 min expected" in best.reason


def test_saves_do_not_overtake_each_other() -> None:
    best = best_interval(stalls_s=[1e-6], saves_s=[60.0], steps_s=[1.0] * 10)
    assert best.steps == 61
    assert "not sooner" in best.reason


def test_a_save_that_costs_nothing_is_made_at_every_step_it_can() -> None:
    assert best_interval(stalls_s=[0.0], steps_s=[1.0] * 9).steps == 1


@given(
    st.lists(st.floats(0, 1e4), max_size=5), st.lists(st.floats(0, 1e4), max_size=5),
    st.lists(st.floats(0, 1e3), max_size=9), st.integers(0, 1000), st.floats(0, 1e8),
    st.integers(1, 100_000),
)  # fmt: skip
def test_it_is_always_a_number_of_steps(stalls, saves, steps, failures, uptime, devices) -> None:
    best = best_interval(
        stalls_s=stalls, saves_s=saves, steps_s=steps, failures=failures, uptime_s=uptime,
        devices=devices,
    )  # fmt: skip
    assert best.steps >= 1


@pytest.mark.parametrize(("best", "changes"), [(119, False), (81, False), (121, True), (79, True)])
def test_small_changes_are_none(monkeypatch, best: int, changes: bool) -> None:
    chosen = iter([Interval(100, ""), Interval(best, "")])
    monkeypatch.setattr(save_interval, "best_interval", lambda **_: next(chosen))
    interval = SaveInterval(tuple, 1, FakeClock())
    assert interval.changed(AUTO) == Interval(100, "")
    interval.observe(saved(1.0, 2.0))
    assert (interval.changed(AUTO) is not None) is changes


AUTO = load_recipe("quickstart", ["checkpoint.interval_steps='auto'"]).recipe
FIXED = load_recipe("quickstart").recipe
HOUR = 3600.0


def step(number: int, seconds: float, **more: float) -> StepRecord:
    return StepRecord(
        attempt=1, step=number, segment="1.00", draw=0, next_draw=1, time=0.0, loss=1.0,
        gradient_norm=1.0, learning_rate=1.0, sequences=1, sequence_length=1,
        seconds={"training": seconds, **more},
    )  # fmt: skip


def event(kind: str, time: float = 0.0, **data: Any) -> Event:
    return Event(kind=kind, attempt=1, time=time, data=data)


def saved(stall_s: float, took_s: float) -> Event:
    return event("checkpoint", health="verified", stall_s=stall_s, seconds_since_save=took_s)


def test_a_number_of_steps_is_left_alone() -> None:
    interval = SaveInterval(tuple, 1, FakeClock())
    interval.observe(saved(1.0, 2.0))
    assert interval.changed(FIXED) is None


def test_it_begins_with_the_default_and_follows_what_is_measured() -> None:
    interval = SaveInterval(tuple, 1000, FakeClock())
    first = interval.changed(AUTO)
    assert first is not None
    assert first.steps == UNMEASURED_STEPS
    assert interval.changed(AUTO) is None, "told once"
    for number in range(20):
        interval.observe(step(number, 60.0, compile=50.0) if number == 0 else step(number, 2.0))
        assert interval.changed(AUTO) is None
    interval.observe(saved(0.5, 20.0))
    second = interval.changed(AUTO)
    assert second is not None
    assert second.steps == round(daly_interval(0.5, 15 * HOUR) / 2.0)
    interval.observe(saved(0.52, 20.0))
    assert interval.changed(AUTO) is None, "nearly the same"
    for _ in range(5):
        interval.observe(saved(5.0, 20.0))
    third = interval.changed(AUTO)
    assert third is not None
    assert third.steps > 2 * second.steps


def test_attempts_that_failed_make_saves_more_frequent_whoever_tells_of_it() -> None:
    def steps_after(*history: Event) -> int:
        interval = SaveInterval(lambda: history, 1000, FakeClock())
        for number in range(9):
            interval.observe(step(number, 1.0))
        interval.observe(saved(1.0, 5.0))
        chosen = interval.changed(AUTO)
        assert chosen is not None
        return chosen.steps

    def attempts(last: str, **data: Any) -> list[Event]:
        told = []
        for number in range(9):
            told.append(event("attempt-started", number * HOUR))
            told.append(event(last, (number + 1) * HOUR, **data))
        return told

    calm, ended = steps_after(), steps_after(*attempts("attempt-ended", reason="preempted"))
    assert ended >= calm
    silent = steps_after(*attempts("evaluation"))
    assert silent < calm / 2
    assert steps_after(*attempts("attempt-ended", cause="killed")) == silent


def test_it_is_judged_anew_when_it_is_set_to_auto_again() -> None:
    interval = SaveInterval(tuple, 1, FakeClock())
    assert interval.changed(AUTO) is not None
    assert interval.changed(FIXED) is None
    assert interval.changed(AUTO) is not None
