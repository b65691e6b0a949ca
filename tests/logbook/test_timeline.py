import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeClock
from longhaul.core.clocks import (
    BUCKETS,
    TimeBuckets,
    start_bucket,
    time_spent,
    tokens_per_second,
    wall_seconds,
)
from longhaul.core.records import Event

spans = st.tuples(
    st.sampled_from(BUCKETS), st.floats(0, 100), st.sampled_from(["", "step", "event"])
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(spans, min_size=1, max_size=8), min_size=1, max_size=3))
def test_booked_seconds_add_up_to_wall_time(make_step, make_event, attempts):
    """Attempts with gaps between them, each gap booked as idle by the attempt that follows."""
    clock = FakeClock()
    begin, records = clock.wall(), []
    for number, pieces in enumerate(attempts):
        clock.advance(500.0 if number else 0.0)
        time_buckets = TimeBuckets(clock)
        if number:
            time_buckets.add("idle", clock.wall() - records[-1].time)
        for bucket, seconds, record in [*pieces, ("training", 1.0, "step")]:
            with time_buckets.track(bucket):
                clock.advance(seconds)
            if record:
                make = make_step if record == "step" else make_event
                records.append(make(time=clock.wall(), seconds=time_buckets.drain()))
    spent = time_spent(records)
    assert sum(spent.values()) == pytest.approx(clock.wall() - begin, abs=1e-3)
    assert wall_seconds(records) == pytest.approx(sum(spent.values()), abs=1e-3)


def test_decisions_take_no_time(make_decision):
    assert time_spent([make_decision()]) == {}
    assert wall_seconds([]) == 0.0


def test_a_rate_counts_what_steps_take_and_nothing_else(make_step):
    seconds = {"training": 1.0, "data_wait": 0.5, "redone": 0.5, "evaluation": 90.0}
    assert tokens_per_second(make_step(seconds=seconds)) == 8 * 64 / 2.0
    assert math.isnan(tokens_per_second(make_step(seconds={})))


def told(*kinds: str, **data: object) -> list[Event]:
    return [Event(kind=kind, data=data, attempt=1, time=0.0) for kind in kinds]


@pytest.mark.parametrize(
    ("before", "bucket"),
    [
        ([], "start-up"),
        (told("attempt-started", "attempt-ended", reason="stopped"), "start-up"),
        (told("attempt-started", "finished"), "start-up"),
        (told("attempt-started"), "restart"),
        (told("attempt-started", "attempt-ended", cause="killed"), "restart"),
        (told("attempt-ended", cause="killed"), "restart"),
    ],
    ids=["the first", "stopped", "finished", "no word", "failed", "failed in its start"],
)
def test_only_a_start_after_a_failure_is_booked_as_a_restart(before, bucket) -> None:
    assert start_bucket(before) == bucket
