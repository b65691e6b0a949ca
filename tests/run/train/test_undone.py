"""What somebody changed just before the trouble is undone, in whole runs within this process."""

from typing import Any

import pytest

from fakes import SilentView
from longhaul.cli.diagnose import judged_again
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.requests import submit
from longhaul.recover.plan import WHO
from longhaul.run.train import request_handler
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32", "model.dropout=0.0",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=4", "batch.stages=[]",
    "evaluation.tokens=256", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=20", "checkpoint.keep_last=99",
    "checkpoint.snapshot_interval_steps=10", "monitor.gauge_interval_steps=5",
)  # fmt: skip
STEPS, WHEN = 200, 110
RunSpec = dict[int, tuple[str, dict[str, Any]]]


class Killed(BaseException):
    """What SIGKILL would do: nothing of the run's own ending is reached."""


class Insistent(SilentView):
    """Asks for things at steps, as a person at another terminal would; may die at one."""

    def __init__(self, folder: RunFolder, asked: RunSpec, dies_at: int | None) -> None:
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
            submit(self.folder, kind, data, who="anna", reason="try", clock=clock)


def train(
    room, *options: str, asked: RunSpec | None = None, dies_at: int | None = None
) -> ExitCode:
    return room.train(STEPS, *options, view=Insistent(room.folder, asked or {}, dies_at))


def recoveries(room) -> list[Decision]:
    """By the policy, and more than a word."""
    made = [decision for decision in room.recoveries() if decision.who == WHO]
    return [d for d in made if set(d.data["actions"]) - {"mask", "report"}]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_handler, "_LOOK_EVERY_S", 0.0)


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory, new_room):
    """The same run, which nobody interferes with."""
    twin = new_room(tmp_path_factory.mktemp("twin") / "runs")
    assert train(twin) is ExitCode.FINISHED
    assert not recoveries(twin)
    return twin


def setting(path: str, value: Any, force: bool = True) -> tuple[str, dict[str, Any]]:
    return "set", {"path": path, "value": value, "force": force}


@pytest.mark.parametrize(
    "asked",
    [
        {WHEN: setting("optim.lr", 3.0)},
        pytest.param(
            {WHEN: setting("optim.beta1", 0.999), WHEN + 2: setting("optim.lr", 2.0)},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {WHEN: setting("optim.name", "sgdw"), WHEN + 1: setting("optim.lr", 300.0)},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {WHEN: ("fork", {"at": 100, "set": {"optim.lr": 3.0}, "reset": ["optimizer"]})},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["rate", "two settings", "another optimizer", "fork"],
)
def test_a_run_that_somebody_spoils_ends_as_if_nobody_had(room, left_alone, asked: RunSpec) -> None:
    assert train(room, asked=asked) is ExitCode.FINISHED, room.said
    (decision,) = recoveries(room)
    assert decision.data["actions"] == ["rollback", "undo"], room.said
    assert decision.data["rollback"]["to"] in (100, WHEN), "the newest state before, and no older"
    assert {change["who"] for change in decision.data["undo"]} == {"anna"}
    assert "after anna" in decision.reason
    assert decision.reason in room.said
    assert room.state() == left_alone.state()
    done, _ = judged_again(room.folder)
    (turn,) = [t for t in done.turns if t.live is not None and t.live.data["actions"] != ["mask"]]
    assert turn.would is not None
    assert turn.would.decision_data(turn.step)["undo"] == decision.data["undo"]
    assert turn.would.reason == decision.reason


@pytest.mark.slow
def test_a_restart_with_another_rate_is_undone_and_the_recipe_does_not_bring_it_back(
    room, left_alone
) -> None:
    train(room, asked={WHEN: ("stop", {})})
    assert train(room, "optim.lr=3.0") is ExitCode.FINISHED, room.said
    (decision,) = recoveries(room)
    assert decision.data["actions"] == ["rollback", "undo"], room.said
    assert decision.data["set"] == {"optim.lr": 2e-3}
    assert decision.data["rollback"]["to"] == WHEN
    assert room.state() == left_alone.state()
    train(room, "optim.lr=3.0", f"train.steps={STEPS + 1}")
    assert "optim.lr: the recipe asks for 3.0, which was undone at step" in room.said
    assert "--force` insists" in room.said


def test_a_crash_between_the_change_and_its_sign_forgets_neither(room, left_alone) -> None:
    with pytest.raises(Killed):
        train(room, asked={WHEN: setting("optim.lr", 3.0)}, dies_at=WHEN + 1)
    assert train(room) is ExitCode.FINISHED, room.said
    (decision,) = recoveries(room)
    assert decision.data["rollback"]["to"] == 100, "the checkpoint that the attempt went on from"
    assert room.state() == left_alone.state()
    assert judged_again(room.folder)[0].turns[0].live == decision


@pytest.mark.slow
def test_who_insists_is_asked_once_more_and_then_the_ladder_helps(room) -> None:
    again = setting("optim.lr", 3.0, force=False)
    forced = setting("optim.lr", 3.0)
    train(room, asked={WHEN: forced, 150: again, 160: forced})
    (refused,) = [e for e in room.of(Event) if e.kind == "request-refused"]
    assert "was undone at step" in refused.data["reason"]
    assert "it was undone once and will not be again" in room.said
    undone, *others = recoveries(room)
    assert undone.data["actions"] == ["rollback", "undo"]
    assert all("undo" not in decision.data["actions"] for decision in others)
    assert any("lower-lr" in decision.data["actions"] for decision in others)
    ledger, _ = load_ledger(room.folder)
    assert ledger.undone("optim.lr", 3.0) == ledger.recoveries[0]


def test_nobody_suspects_a_restart_that_changed_nothing(room) -> None:
    train(room, asked={WHEN: ("stop", {})})
    train(room)
    assert not [d for d in room.of(Decision) if d.kind == "restart"]
    assert load_ledger(room.folder)[0].changes == ()
