import pytest

from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.description import readable_line

AT = {"attempt": 2, "segment": "1.01", "step": 1200, "time": 1_000_000.0}


def step(**values):
    defaults = {
        "draw": 0, "next_draw": 8, "loss": 3.25, "gradient_norm": 0.5, "learning_rate": 1e-3,
        "sequences": 8, "sequence_length": 64, "seconds": {"training": 0.5},
    }  # fmt: skip
    return StepRecord(**AT, **defaults | values)


def event(kind, **data):
    return Event(**AT, kind=kind, data=data)


def decision(kind, from_step=0, **data):
    return Decision(**AT, kind=kind, from_step=from_step, who="anna", reason="spikes", data=data)


STARTED = {"pid": 7, "host": "n1"}
UNSET = {"path": "batch.micro_sequences", "old": 4}
LOWERED = {"path": "optim.lr", "value": 1e-4}


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (step(), "loss 3.2500 lr 1.00e-03 norm 0.5 1,024 tok/s"),
        (
            step(loss=float("nan"), seconds={}, masked=True),
            "loss nan lr 1.00e-03 norm 0.5 masked",
        ),
        (
            event("evaluation", loss=3.5, bits_per_byte=1.25),
            "- validation loss 3.5000 nats, 1.2500 bits per byte",
        ),
        (event("evaluation", loss="nan"), "- validation loss nan nats"),
        (
            event("cause", cause="data", reason="elsewhere it is gone", replayed_steps=42),
            "- cause: data: elsewhere it is gone (replays of 42 steps)",
        ),
        (event("note", text="lunch", who="anna"), "- Note by anna: lunch"),
        (event("warning", message="disk nearly full"), "- Warning: disk nearly full"),
        (
            event("attempt-started", **STARTED, resumed_from=None),
            "- attempt 2 started from nothing (process 7 on n1)",
        ),
        (
            event("attempt-started", **STARTED, resumed_from=0),
            "- attempt 2 started from checkpoint 0 (process 7 on n1)",
        ),
        (event("save-started", request="x"), "- save-started"),
        (
            event("rolled-back", left=1210, to=1200, where="memory", took_s=2.0),
            "- Back at step 1,200 from memory in 2.0 s",
        ),
        (event("fetched-by-mail", stamps=2), "- fetched-by-mail stamps=2"),
        (event("note", text="one\n  two", who="anna"), "- Note by anna: one two"),
        (
            event("settings-differ", difference={"optim.lr": [1e-3, 1e-4]}),
            "- settings differ from the checkpoint's: optim.lr 0.001 → 0.0001",
        ),
        (
            decision("unset", **UNSET),
            "* anna gave batch.micro_sequences, which was 4, its value of the recipe back: spikes",
        ),
        (
            decision("set", **LOWERED, old=1e-3),
            "* anna set optim.lr 0.001 → 0.0001: spikes",
        ),
        (
            decision("set", from_step=1500, **LOWERED),
            "* anna set optim.lr to 0.0001 from step 1,500 on: spikes",
        ),
        (decision("skip", begin=8, end=16), "* anna skipped blocks 8 to 16 of the data: spikes"),
        (decision("stop"), "* anna asked it to stop: spikes"),
    ],
)
def test_a_record_is_one_line_a_person_can_read(record, text):
    at, _, what = readable_line(record).partition("  1.01   1,200  ")
    assert what == text
    assert len(at.split()) == 2
    assert "\n" not in readable_line(record)
