"""Whom what happens concerns, and how often somebody is called."""

from dataclasses import replace

import pytest

from longhaul.core.errors import ExitCode
from longhaul.interop.trackers.incidents import (
    Incident,
    RateLimit,
    body_of,
    incident_of,
    incident_of_end,
)
from longhaul.logbook.reading import read_journal

SMALL = Incident("event", "store-away", "warning", 0.0, "a store did not answer")
BAD = replace(SMALL, severity="alarm", text="it diverged")
END = incident_of_end(ExitCode.NEEDS_PERSON, 0.0)


def test_what_calls_a_person_and_what_does_not(run):
    run.troubled()
    run.event("attempt-ended", cause="hang", reason="rank 1: hang", follows="a restart", reached=9)
    run.event("checkpoint-failed", message="No space left on device")
    run.event("paused", reason="the disk is full")
    run.event("store-back", tier="s3://bucket")
    run.event("attempt-ended", reason="finished")
    run.finding(severity="warning")
    run.decision("set", path="optim.lr", value=1e-4)
    found = [incident for r in read_journal(run.folder) if (incident := incident_of(r))]
    assert [(one.kind, one.what, one.severity) for one in found] == [
        ("finding", "divergence", "alarm"),
        ("decision", "recover", "warning"),
        ("event", "attempt-ended", "warning"),
        ("event", "checkpoint-failed", "warning"),
        ("event", "paused", "alarm"),
    ]
    assert "rolled back from step 8 to 5" in found[1].text
    assert "then a restart" in found[2].text
    assert all("\n" not in one.text for one in found)


@pytest.mark.parametrize(
    ("code", "severity"),
    [(None, "alarm"), (0, "notice"), (16, "warning"), (17, "alarm"), (2, "alarm")],
)
def test_every_end_has_its_word(code, severity):
    end = incident_of_end(code, 1.0)
    assert (end.severity, end.is_end) == (severity, True)
    assert body_of(end, "alpha", "host", 0)["text"].startswith("longhaul alpha: ")


def test_so_many_an_hour_and_the_rest_is_counted_in_the_next():
    limit, called = RateLimit(4), []
    for second in range(100):
        limit.add(SMALL if second != 50 else BAD)
        called += [found] if (found := limit.due(float(second))) else []
    assert [suppressed for _, suppressed in called] == [0, 0, 0], "one call is kept for the end"
    incident, suppressed = limit.due(3601.0)
    assert (incident, suppressed) == (BAD, 96)
    assert limit.due(3601.5) is None, "nothing is left"


def test_the_end_is_told_even_then_and_nothing_hides_it():
    limit = RateLimit(2)
    limit.add(BAD)
    assert limit.due(0.0) == (BAD, 0)
    limit.add(BAD)
    assert limit.due(1.0) is None
    limit.add(END)
    limit.add(BAD)
    assert limit.due(2.0) == (END, 2)
    limit.add(END)
    assert limit.due(3.0) is None, "a run that is started again and again does not call each time"


def test_a_clock_that_is_set_back_silences_nobody_for_long():
    limit = RateLimit(1)
    limit.add(BAD)
    assert limit.due(1_000_000.0)
    limit.add(BAD)
    assert limit.due(10.0)
