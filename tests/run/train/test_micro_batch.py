"""`batch.micro_sequences = "auto"` through whole runs, within this process."""

from pathlib import Path

import pytest
from safetensors import safe_open

from fakes import SilentView
from longhaul.config.load import with_overrides
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.records import Decision, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import read_run_spec
from longhaul.logbook.segments import read_segments
from longhaul.run.train.launch import Start, start
from longhaul.store.catalogue import catalogue
from longhaul.train import memory
from longhaul.train.micro_batch import Found
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32", "model.dropout=0.3",
    "batch.sequence_length=16", "batch.sequences=16",
    "batch.stages=[{from_step=4, sequences=8, sequence_length=32}]",
    "optim.schedule.shape=constant", "optim.schedule.warmup_steps=2",
    "evaluation.tokens=256", "evaluation.interval_steps=0",
)  # fmt: skip
AUTO = "batch.micro_sequences=auto"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a search finds from now on, one value a search."""
    values: list[int] = []
    search = lambda step, recipe, ranks, below: Found(values.pop(0), "measured 1 GB")  # noqa: E731
    monkeypatch.setattr(memory, "fitting_micro_sequences", search)
    return values


class Room:
    def __init__(self, path: Path, prepared: Path) -> None:
        self.path, self.prepared, self.said = path, prepared, ""

    def train(self, steps: int, *options: str) -> RunFolder:
        view = SilentView()
        typed = (*TINY, f"train.steps={steps}", *options)
        code = start(Start("drill", typed, runs=self.path, prepared=self.prepared), view)
        assert code is ExitCode.FINISHED
        self.said = "\n".join(view.said)
        return RunFolder(self.path / "drill")


@pytest.fixture
def room(tmp_path: Path, prepared: Path) -> Room:
    return Room(tmp_path, prepared)


def decided(folder: RunFolder) -> list[tuple[str, object]]:
    records = read_journal(folder, steps=False)
    ours = [r for r in records if isinstance(r, Decision) and r.kind in ("set", "unset")]
    assert {decision.who for decision in ours} <= {"longhaul"}
    return [(decision.kind, decision.data.get("value")) for decision in ours]


def in_force(folder: RunFolder) -> object:
    ledger, _ = load_ledger(folder)
    effective = with_overrides(read_run_spec(folder).settings(), ledger.overrides_at(0))
    assert read_segments(folder)[-1].settings == effective.model_dump(mode="json")
    return effective.batch.micro_sequences


def state(folder: RunFolder) -> dict[str, bytes]:
    found = {}
    for path in sorted(catalogue(folder.checkpoints)[-1].path.glob("*.safetensors")):
        with safe_open(str(path), framework="numpy") as file:
            found |= {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return found


def test_what_was_measured_is_said_and_kept_before_the_first_step(room: Room) -> None:
    folder = room.train(6, AUTO)
    assert in_force(folder) == 8
    assert "micro-batch: 8 sequences of 16, then 8 at once; the largest that fits:" in room.said
    assert "a quarter of the" in room.said
    kinds = [record for record in read_journal(folder) if isinstance(record, Decision | StepRecord)]
    first = kinds[0]
    assert isinstance(first, Decision)
    assert first.data == {"path": "batch.micro_sequences", "value": 8, "old": "auto"}
    assert "a sequence, together" in first.reason


def test_a_resumed_run_keeps_what_was_found_whatever_memory_it_finds(
    room: Room, found: list[int], tmp_path: Path
) -> None:
    found += [2, 8]
    room.train(3, AUTO)
    folder = room.train(7)
    assert (in_force(folder), found) == (2, [8])
    plain = Room(tmp_path / "plain", room.prepared).train(7, "batch.micro_sequences=2")
    assert state(folder) == state(plain)
    other = Room(tmp_path / "other", room.prepared).train(7, "batch.micro_sequences=4")
    assert state(folder) != state(other)


def test_a_measured_run_ends_in_the_bytes_of_one_that_was_told(room: Room, tmp_path: Path) -> None:
    measured = room.train(6, AUTO)
    told = Room(tmp_path / "told", room.prepared).train(6, "batch.micro_sequences=8")
    assert state(measured) == state(told)


def test_a_number_asked_for_later_wins_and_auto_takes_up_again_what_was_found(
    room: Room, found: list[int]
) -> None:
    found += [2, 8]
    assert in_force(room.train(2, AUTO)) == 2
    assert in_force(room.train(3, "batch.micro_sequences=4")) == 4
    assert "batch.micro_sequences 2 → 4" in room.said
    assert in_force(room.train(4, "batch.micro_sequences=1")) == 1
    assert in_force(room.train(5)) == 1
    folder = room.train(6, AUTO)
    assert in_force(folder) == 2
    assert decided(folder) == [("set", 2), ("unset", None), ("set", 2)]
    assert found == [8]


def test_auto_asked_of_a_run_that_had_a_number_is_found_then(room: Room, found: list[int]) -> None:
    found += [2]
    assert decided(room.train(2, "batch.micro_sequences=4")) == []
    folder = room.train(3, AUTO)
    assert (in_force(folder), decided(folder)) == (2, [("set", 2)])


def test_nothing_that_fits_ends_before_any_step(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    with pytest.raises(NeedsPerson, match="one sequence takes") as told:
        room.train(6, AUTO)
    assert "batch.micro_sequences=1" in told.value.remedy
    folder = RunFolder(room.path / "drill")
    assert not [r for r in read_journal(folder) if isinstance(r, Decision | StepRecord)]
    # Nothing is bound to the failed start: with memory, or a number, the run begins.
    monkeypatch.undo()
    assert in_force(room.train(6, AUTO)) == 8
