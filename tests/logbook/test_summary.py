import math

import pytest

from fakes import FakeClock
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import acquire
from longhaul.logbook.queries import connect
from longhaul.logbook.segments import open_segment
from longhaul.logbook.summary import (
    run_state,
    stretches,
    summarize,
    time_by_bucket,
    time_by_segment,
)


@pytest.mark.parametrize(
    ("kinds", "live", "state"),
    [
        ([], False, "new"),
        (["attempt-started"], True, "live"),
        (["attempt-started", "evaluation"], False, "dead"),
        (["attempt-started", "attempt-ended"], False, "stopped"),
        (["attempt-started", "finished", "attempt-ended"], False, "finished"),
        (["attempt-started", "finished", "attempt-started"], False, "dead"),
    ],
)
def test_the_state_is_what_the_last_attempt_said(make_event, kinds, live, state):
    assert run_state([make_event(kind) for kind in kinds], live=live) == state


def test_a_run_at_a_glance(folder, make_step, make_event, make_opening):
    clock = FakeClock()
    acquire(folder, clock)
    open_segment(folder, make_opening())
    journal = Journal(folder, 1)
    journal.append(make_event("attempt-started", data={"total_steps": 300, "pid": 1}))
    for step in range(1, 11):
        journal.append(make_step(step, seconds={"training": 3.0}))
    journal.append(make_event("evaluation", 10, data={"loss": 4.5}, seconds={"evaluation": 10.0}))
    journal.close()
    found = summarize(folder, clock)
    assert (found.state, found.step, found.total_steps, found.segments) == ("live", 10, 300, 1)
    assert (found.loss, found.validation_loss) == (4.9, 4.5)
    assert found.goodput == 30 / 40
    assert found.seen == 1_000_010.0


def test_a_run_that_has_only_a_folder(folder):
    found = summarize(folder, FakeClock())
    assert (found.state, found.step, found.loss, found.seen) == ("new", 0, None, None)
    assert math.isnan(found.goodput)


def test_an_evaluation_that_was_not_finite_is_shown_as_such(folder, make_event):
    journal = Journal(folder, 1)
    journal.append(make_event("evaluation", data={"loss": float("nan")}))
    journal.close()
    assert math.isnan(summarize(folder, FakeClock()).validation_loss)


def test_steps_and_time_of_each_segment(folder, make_step, make_event):
    first, second = Journal(folder, 1), Journal(folder, 2)
    for step in (1, 2, 3):
        first.append(make_step(step, seconds={"training": 1.0}))
    idle = {"idle": 1000.0, "restart": 4.0}
    second.append(make_event("attempt-started", attempt=2, segment="1.01", seconds=idle))
    for step in (3, 4):
        made = {"attempt": 2, "segment": "1.01", "learning_rate": 1e-4, "loss": float("nan")}
        second.append(make_step(step, **made, seconds={"redone": 2.0}, time=5.0))
    first.close()
    second.close()
    with connect(folder) as connection:
        found = stretches(connection, {})
        assert time_by_segment(connection) == {"1.00": 3.0, "1.01": 8.0}
        assert time_by_bucket(connection) == {
            "training": 3.0, "idle": 1000.0, "restart": 4.0, "redone": 4.0,
        }  # fmt: skip
    assert (found["1.00"].first_step, found["1.00"].last_step) == (1, 3)
    assert found["1.00"].loss == 4.97
    assert found["1.01"].learning_rate == 1e-4
    assert math.isnan(found["1.01"].loss)
