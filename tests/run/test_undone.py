"""What somebody changed just before the trouble is undone, in whole runs within this process."""

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from longhaul.cli.replay import judged_again
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.requests import new_request, submit
from longhaul.recover.plan import WHO
from longhaul.run import desk
from longhaul.run.start import Start, start
from longhaul.run.view import SilentView
from longhaul.store.catalogue import catalogue

TINY = (
    "model.width=16", "model.layers=1", "model.context=32", "model.dropout=0.0",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=4", "batch.stages=[]",
    "evaluation.tokens=256", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=20", "checkpoint.keep_last=99",
    "checkpoint.snapshot_interval_steps=10", "monitor.gauge_interval_steps=5",
)  # fmt: skip
STEPS, WHEN = 200, 110
Asked = dict[int, tuple[str, dict[str, Any]]]


class Killed(BaseException):
    """What SIGKILL would do: nothing of the run's own ending is reached."""


class Insistent(SilentView):
    """Asks for things at steps, as a person at another terminal would; may die at one."""

    def __init__(self, folder: RunFolder, asked: Asked, dies_at: int | None) -> None:
        super().__init__()
        self.folder, self.asked, self.dies_at = folder, dict(asked), dies_at

    def show(self, record: StepRecord | Event) -> None:
        if not isinstance(record, StepRecord):
            return
        if record.step == self.dies_at:
            raise Killed
        if record.step in self.asked:
            kind, data = self.asked.pop(record.step)
            clock = RealClock()
            submit(self.folder, new_request(kind, data, who="anna", reason="try", clock=clock))


class Room:
    def __init__(self, path: Path, prepared: Path) -> None:
        self.path, self.prepared, self.said = path, prepared, ""
        self.folder = RunFolder(path / "drill")

    def train(
        self, *options: str, asked: Asked | None = None, dies_at: int | None = None
    ) -> ExitCode:
        view = Insistent(self.folder, asked or {}, dies_at)
        typed = (*TINY, f"train.steps={STEPS}", *options)
        try:
            return start(Start("drill", typed, runs=self.path, prepared=self.prepared), view)
        finally:
            self.said = "\n".join(view.said)

    def of(self, kind: type) -> list[Any]:
        return [record for record in read_journal(self.folder) if isinstance(record, kind)]

    def recoveries(self) -> list[Decision]:
        made = [d for d in self.of(Decision) if d.kind == "recover" and d.who == WHO]
        return [d for d in made if set(d.data["actions"]) - {"mask", "report"}]

    def weights(self) -> dict[str, bytes]:
        found = {}
        for path in sorted(catalogue(self.folder.checkpoints)[-1].path.glob("*.safetensors")):
            with safe_open(str(path), framework="numpy") as file:
                found |= {k: file.get_tensor(k).tobytes() for k in file.keys()}  # noqa: SIM118
        return found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "_LOOK_EVERY_S", 0.0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture
def room(tmp_path: Path, prepared: Path) -> Room:
    return Room(tmp_path / "runs", prepared)


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> Room:
    """The same run, which nobody interferes with."""
    twin = Room(tmp_path_factory.mktemp("twin") / "runs", prepared)
    assert twin.train() is ExitCode.FINISHED
    assert not twin.recoveries()
    return twin


def setting(path: str, value: Any, force: bool = True) -> tuple[str, dict[str, Any]]:
    return "set", {"path": path, "value": value, "force": force}


@pytest.mark.parametrize(
    "asked",
    [
        {WHEN: setting("optim.lr", 3.0)},
        {WHEN: setting("optim.beta1", 0.999), WHEN + 2: setting("optim.lr", 2.0)},
        {WHEN: setting("optim.name", "sgdw"), WHEN + 1: setting("optim.lr", 300.0)},
        {WHEN: ("fork", {"at": 100, "set": {"optim.lr": 3.0}, "reset": ["optimizer"]})},
    ],
    ids=["rate", "two settings", "another optimizer", "fork"],
)
def test_a_run_that_somebody_spoils_ends_as_if_nobody_had(
    room: Room, left_alone: Room, asked: Asked
) -> None:
    assert room.train(asked=asked) is ExitCode.FINISHED, room.said
    (decision,) = room.recoveries()
    assert decision.data["actions"] == ["rollback", "undo"], room.said
    assert decision.data["rollback"]["to"] in (100, WHEN), "the newest state before, and no older"
    assert {change["who"] for change in decision.data["undo"]} == {"anna"}
    assert "after anna" in decision.reason
    assert decision.reason in room.said
    assert room.weights() == left_alone.weights()
    done, _ = judged_again(room.folder)
    (turn,) = [t for t in done.turns if t.live is not None and t.live.data["actions"] != ["mask"]]
    assert turn.would is not None
    assert turn.would.decision_data(turn.step)["undo"] == decision.data["undo"]
    assert turn.would.reason == decision.reason


def test_a_restart_with_another_rate_is_undone_and_the_recipe_does_not_bring_it_back(
    room: Room, left_alone: Room
) -> None:
    room.train(asked={WHEN: ("stop", {})})
    assert room.train("optim.lr=3.0") is ExitCode.FINISHED, room.said
    (decision,) = room.recoveries()
    assert decision.data["actions"] == ["rollback", "undo"], room.said
    assert decision.data["set"] == {"optim.lr": 2e-3}
    assert decision.data["rollback"]["to"] == WHEN
    assert room.weights() == left_alone.weights()
    room.train("optim.lr=3.0", f"train.steps={STEPS + 1}")
    assert "optim.lr: the recipe asks for 3.0, which was undone at step" in room.said
    assert "--force` insists" in room.said


def test_a_crash_between_the_change_and_its_sign_forgets_neither(
    room: Room, left_alone: Room
) -> None:
    with pytest.raises(Killed):
        room.train(asked={WHEN: setting("optim.lr", 3.0)}, dies_at=WHEN + 1)
    assert room.train() is ExitCode.FINISHED, room.said
    (decision,) = room.recoveries()
    assert decision.data["rollback"]["to"] == 100, "the checkpoint that the attempt went on from"
    assert room.weights() == left_alone.weights()
    assert judged_again(room.folder)[0].turns[0].live == decision


def test_who_insists_is_asked_once_more_and_then_the_ladder_helps(room: Room) -> None:
    again = setting("optim.lr", 3.0, force=False)
    forced = setting("optim.lr", 3.0)
    room.train(asked={WHEN: forced, 150: again, 160: forced})
    (refused,) = [e for e in room.of(Event) if e.kind == "request-refused"]
    assert "was undone at step" in refused.data["reason"]
    assert "it was undone once and will not be again" in room.said
    undone, *others = room.recoveries()
    assert undone.data["actions"] == ["rollback", "undo"]
    assert all("undo" not in decision.data["actions"] for decision in others)
    assert any("lower-lr" in decision.data["actions"] for decision in others)
    ledger, _ = load_ledger(room.folder)
    assert ledger.undone("optim.lr", 3.0) == ledger.recoveries[0]


def test_nobody_suspects_a_restart_that_changed_nothing(room: Room) -> None:
    room.train(asked={WHEN: ("stop", {})})
    room.train()
    assert not [d for d in room.of(Decision) if d.kind == "restart"]
    assert load_ledger(room.folder)[0].changes == ()
