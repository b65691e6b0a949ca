from typing import Any

from longhaul.config.load import load_recipe
from longhaul.core.clocks import FakeClock
from longhaul.core.records import Event, StepRecord
from longhaul.store.interval import UNMEASURED_STEPS, daly_interval
from longhaul.store.save_interval import SaveInterval

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
    def steps_after(*past: Event) -> int:
        interval = SaveInterval(lambda: past, 1000, FakeClock())
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
