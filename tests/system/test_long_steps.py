"""Steps that take longer than the deadline of a silence, and one that never ends."""

import os
from pathlib import Path

import pytest

from fork_server import SERVER
from longhaul.core.records import Event, StepRecord
from small_runs import FEW_HELD_OUT

SCRIPT = Path(__file__).parent / "long_steps.py"
PASS_S, PASSES, DEADLINE_S = 0.3, 12, 2.0
START_UP_S = 120.0
SMALL = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=2", "model.context=32", "batch.stages=[]",
    "batch.sequence_length=32", "batch.micro_sequences=2", "evaluation.tokens=256",
    "evaluation.interval_steps=0", "checkpoint.interval_steps=0", "train.steps=2",
    "optim.schedule.warmup_steps=1", f"supervise.deadline_s={DEADLINE_S}",
    f"supervise.start_up_s={START_UP_S}", f"supervise.evaluation_s={START_UP_S}",
    "supervise.restarts_per_day=0",
)  # fmt: skip


def train(room, processes: int, *sets: str, pass_s: float = PASS_S, hang: str = "-") -> str:
    settings = [*SMALL, *sets]
    words = [word for setting in settings for word in ("--set", setting)]
    process = SERVER.start(
        [str(SCRIPT), str(pass_s), hang, "train", "drill", "--nproc", str(processes),
         "--prepared-dir", str(room.prepared), "--runs-dir", str(room.runs), *words],
        room.path, os.environ,
    )  # fmt: skip
    room.processes.append(process)
    output, _ = process.communicate(timeout=240)
    return output


def failures(room) -> list[Event]:
    events = [r for r in room.records() if isinstance(r, Event)]
    return [e for e in events if e.kind == "attempt-ended" and "cause" in e.data]


@pytest.mark.parametrize(
    ("processes", "sets"),
    [
        (1, (f"batch.sequences={2 * PASSES}",)),
        pytest.param(2, (f"batch.sequences={4 * PASSES}",), marks=pytest.mark.slow),
        pytest.param(
            2, (f"batch.sequences={2 * PASSES}", "parallel.pipeline=2"), marks=pytest.mark.slow
        ),
    ],
    ids=["one process", "two ranks", "a pipeline"],
)
def test_a_step_beyond_the_deadline_is_no_hang_as_its_passes_give_signs(
    room, processes: int, sets: tuple[str, ...]
) -> None:
    assert PASSES * PASS_S > 1.5 * DEADLINE_S
    output = train(room, processes, *sets)
    assert "finished: 2 steps" in output, output
    assert not failures(room)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_step_in_one_silent_pass_beyond_the_deadline_is_no_hang_either(
    room, processes: int
) -> None:
    """As where a host has queued a step for its device: nothing is heard until it is made."""
    sets = f"batch.sequences={8 * processes}", "batch.micro_sequences=8"
    output = train(room, processes, *sets, pass_s=1.5 * DEADLINE_S)
    assert "finished: 2 steps" in output, output
    assert not failures(room)
    assert (room.folder().workers / "silences.json").exists(), "kept for the next attempt"


def test_a_rank_that_hangs_in_its_third_pass_is_named_within_its_deadline(room) -> None:
    sets = f"batch.sequences={4 * PASSES}", "parallel.replicate=2"
    output = train(room, 2, *sets, hang="1:1:3")
    (failure,) = failures(room)
    assert (failure.data["cause"], failure.data["rank"]) == ("hang", 1), output
    (record,) = [r for r in room.records() if isinstance(r, StepRecord)]
    assert failure.time - record.time < START_UP_S / 2, "a step's deadline, not that of a start"
