"""The chronicle tells what befell machines, stores and replicas."""

import pytest

from longhaul.core.records import Event
from longhaul.logbook.description import event_in_words


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("attempt-began", {"absent": {"b": "its memory failed"}}, "Without b: its memory failed"),
        ("machine-verdict", {"kind": "corrupt", "reason": "the weights of rank 1 are odd"},
         "the weights of rank 1 are odd"),
        ("node-probed", {"node": "c", "passed": False, "reason": "wrong sums"}, "wrong sums"),
        ("node-refused", {"node": "c", "reason": "same board"}, "Node c was refused: same board"),
        ("node-ordered", {"node": None, "reason": "timed out"}, "none came: timed out"),
        ("node-ordered", {"node": "d", "reason": "it has come"}, "Node d was ordered"),
        ("brought-back", {"tier": "s3://b/run", "of_attempt": 3, "lacking": ["journal/1 (gone)"]},
         "from s3://b/run as attempt 3 had left it, but for journal/1"),
        ("fetched", {"tier": "s3://b/run", "took_s": 2.0}, "fetched from s3://b/run in 2.0 s"),
        ("store-away", {"message": "step-20 is not there yet"}, "step-20 is not there yet"),
        ("paused", {"reason": "the disk is full"}, "the disk is full"),
        ("replica-lost", {"rank": 2, "reason": "killed"}, "Replica 2 was lost"),
        ("replica-back", {"rank": 2, "peer": 0, "away_s": 9.0}, "with the state of replica 0"),
        ("preemption-missed", {"message": "no checkpoint within 30 s"}, "no checkpoint within"),
    ],
)  # fmt: skip
def test_what_befell_a_machine_is_told_with_its_reason(kind, data, words) -> None:
    told = event_in_words(Event(kind=kind, attempt=1, step=7, time=0.0, data=data))
    assert told is not None
    assert words in told[1]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("attempt-began", {"absent": {}}),
        ("machine-verdict", {"kind": "straggler", "reason": "a finding tells of it"}),
        ("node-probed", {"node": "a", "passed": True}),
        ("uploaded", {"tier": "s3://b/run"}),
    ],
)
def test_what_is_as_it_should_be_is_not_told(kind, data) -> None:
    assert event_in_words(Event(kind=kind, attempt=1, step=7, time=0.0, data=data)) is None
