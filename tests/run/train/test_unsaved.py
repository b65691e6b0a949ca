"""Runs whose checkpoints cannot be written, for another reason than a full disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import SilentView
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.records import Event, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.run.train.launch import Start, start
from longhaul.store.catalogue import catalogue
from longhaul.train import checkpoint_manager
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32", "model.dropout=0.3",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=2", "batch.stages=[]",
    "optim.schedule.shape=constant", "optim.schedule.warmup_steps=2", "train.steps=60",
    "evaluation.tokens=256", "evaluation.interval_steps=0", "checkpoint.interval_steps=5",
)  # fmt: skip


class Room(SilentView):
    """A run whose `checkpoints` becomes a plain file once a step is saved."""

    def __init__(self, path: Path, prepared: Path) -> None:
        super().__init__()
        self.path, self.prepared = path, prepared
        self.folder = RunFolder(path / "drill")
        self.breaks_at: int | None = None
        self.aside = path / "aside"

    def show(self, record: StepRecord | Event) -> None:
        saved = isinstance(record, Event) and record.data.get("health") == "verified"
        if saved and record.step == self.breaks_at:
            self.breaks_at = None
            self.folder.checkpoints.rename(self.aside)
            self.folder.checkpoints.write_text("not a folder any more")

    def mend(self) -> None:
        self.folder.checkpoints.unlink()
        self.aside.rename(self.folder.checkpoints)

    def train(self, *options: str) -> ExitCode:
        typed = Start("drill", (*TINY, *options), runs=self.path, prepared=self.prepared)
        return start(typed, self)

    def events(self, kind: str) -> list[Event]:
        records = read_journal(self.folder, steps=False)
        return [r for r in records if isinstance(r, Event) and r.kind == kind]

    def steps(self) -> list[int]:
        return [r.step for r in read_journal(self.folder, events=False)]


@pytest.fixture
def room_in(tmp_path: Path, prepared: Path) -> Callable[[str], Room]:
    return lambda name: Room(tmp_path / name, prepared)


def test_saves_that_fail_again_and_again_end_the_run_loudly(
    room_in: Callable[[str], Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = room_in("runs")
    room.breaks_at = 10
    monkeypatch.setattr(checkpoint_manager, "_RETRY_S", 0.0)
    with pytest.raises(NeedsPerson) as stopped:
        room.train("checkpoint.retry_minutes=0.0")
    message = str(stopped.value)
    for part in ("EEXIST", str(room.folder.checkpoints), "checkpoint.retry_minutes"):
        assert part in message
    (paused,) = room.events("paused")
    assert "saves in a row have failed" in paused.data["reason"]
    assert max(room.steps()) < 60, "it does not train into the void"
    assert room.events("attempt-ended")[-1].data["reason"].startswith("stopped: ")
    assert stopped.value.exit_code == 17
    room.mend()
    assert [c.step for c in catalogue(room.folder.checkpoints)][-1] >= 10
    assert room.train() is ExitCode.FINISHED


def test_what_can_be_saved_again_goes_on_by_itself_in_the_same_bytes(
    room_in: Callable[[str], Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    room, plain = room_in("runs"), room_in("plain")
    room.breaks_at = 10
    slept: list[float] = []

    class Moments:
        @staticmethod
        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 3:
                room.mend()

    monkeypatch.setattr(checkpoint_manager, "time", Moments)
    assert room.train() is ExitCode.FINISHED
    assert slept == [5.0, 10.0, 20.0], "ever longer"
    (resumed,) = room.events("resumed")
    assert resumed.data["reason"] == "it can be saved again"
    assert room.steps() == list(range(1, 61))
    assert plain.train() is ExitCode.FINISHED
    last, other = (catalogue(one.folder.checkpoints)[-1].path for one in (room, plain))
    tensors = sorted(path.name for path in last.glob("*.safetensors"))
    assert tensors
    for name in tensors:
        assert (last / name).read_bytes() == (other / name).read_bytes()
