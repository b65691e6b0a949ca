"""A run that is lost here and comes back from its remote tier: whole runs within this process."""

import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from fakes import SilentView
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode, NeedsPerson, RecipeError, UsageError
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.folder import RunFolder, list_runs
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.requests import submit
from longhaul.logbook.segments import read_segments
from longhaul.run.train import request_handler
from longhaul.run.train.control_requests import request_rollback
from longhaul.run.train.launch import Start, start
from longhaul.store import bring_back
from longhaul.store.catalogue import catalogue
from longhaul.store.fetching import find_run_log
from longhaul.store.remote_log import place_of
from longhaul.store.store_files import StoreFiles
from longhaul.store.tiers import StoreNeeded, Tiers
from longhaul.train.trainer import Trainer
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=2", "batch.stages=[]",
    "optim.schedule.shape=constant", "optim.schedule.warmup_steps=2", "optim.lr=4e-3",
    "evaluation.tokens=256", "evaluation.interval_steps=0", "sample.tokens=0",
    "checkpoint.interval_steps=5", "checkpoint.snapshot_interval_steps=0",
)  # fmt: skip


DEADLINE_S = 30
Doings = dict[int, Callable[[], None]]
"""Step → what is done at it."""


class Watcher(SilentView):
    """Does something when a step, or a checkpoint that was read back, is shown."""

    def __init__(self, at: Doings, saved: Doings) -> None:
        super().__init__()
        self.at, self.saved = at, saved

    def show(self, record: StepRecord | Event) -> None:
        if isinstance(record, StepRecord) and record.step in self.at:
            self.at.pop(record.step)()
        verified = isinstance(record, Event) and record.data.get("health") == "verified"
        if verified and record.step in self.saved:
            self.saved.pop(record.step)()


def two_steps_after(checkpoint: int, *actions: Callable[[], None]) -> dict[str, Any]:
    """Arguments of `Room.train`: the actions are done one a step, once a checkpoint is sent."""
    left, at = [lambda: None, *actions], {}

    def step() -> None:
        if left:
            left.pop(0)()

    return {"at": at, "in_step": True, "saved": {checkpoint: lambda: at.update(
        dict.fromkeys(range(checkpoint, checkpoint + 20), step)
    )}}  # fmt: skip


def keep_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each checkpoint read back, and sent where the store answers, before the next step."""
    saved, offer = Trainer.saved, Tiers.offer

    def offered(self: Tiers) -> None:
        offer(self)
        assert all(one.settle(DEADLINE_S) or one.settled for one in self._uploaders), "not sent"

    monkeypatch.setattr(Trainer, "saved", lambda self, wait=False: saved(self, wait=True))
    monkeypatch.setattr(Tiers, "offer", offered)


class Room:
    def __init__(self, path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs, self.prepared, self.store = path / "runs", prepared, path / "store"
        self.monkeypatch = monkeypatch
        self.folder = RunFolder(self.runs / "drill")
        self.said = ""

    def train(
        self,
        steps: int,
        *options: str,
        at: Doings | None = None,
        saved: Doings | None = None,
        new: bool = False,
        in_step: bool = False,
    ) -> ExitCode:
        view = Watcher({} if at is None else at, saved or {})
        typed = (*TINY, f"checkpoint.remote='{self.store}'", f"train.steps={steps}", *options)
        with self.monkeypatch.context() as patched:
            if in_step:
                keep_in_step(patched)
            try:
                return start(
                    Start("drill", typed, runs=self.runs, prepared=self.prepared, new=new), view
                )
            finally:
                self.said = "\n".join(view.said)

    def ask(self, kind: str, **data: Any) -> Callable[[], None]:
        def submitted() -> None:
            submit(self.folder, kind, data, who="anna", reason="too hot", clock=RealClock())

        return submitted

    def lose(self) -> None:
        shutil.rmtree(self.runs)

    def events(self, kind: str) -> list[Event]:
        records = read_journal(self.folder, steps=False)
        return [r for r in records if isinstance(r, Event) and r.kind == kind]


@pytest.fixture
def room(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr(request_handler, "_LOOK_EVERY_S", 0.0)
    return Room(tmp_path, prepared, monkeypatch)


def test_a_lost_run_comes_back_with_its_decisions_and_its_story(room: Room) -> None:
    lowered = room.ask("set", path="optim.lr", value=1e-3)
    assert room.train(8, at={6: lowered}) is ExitCode.FINISHED
    before = list(read_journal(room.folder))
    room.lose()
    assert room.train(12) is ExitCode.FINISHED
    assert "nothing of run drill is left here; bringing its run log back" in room.said
    (told,) = room.events("brought-back")
    assert (told.attempt, told.data["lacking"], told.data["of_attempt"]) == (2, [], 1)
    assert told.data["tier"] == f"{room.store}/drill"
    assert load_ledger(room.folder)[0].overrides_at(12) == {"optim.lr": 1e-3}
    steps = [r for r in read_journal(room.folder) if isinstance(r, StepRecord)]
    assert [(s.attempt, s.step) for s in steps] == [
        *((1, step) for step in range(1, 9)),
        *((2, step) for step in range(9, 13)),
    ]
    assert {s.learning_rate for s in steps[6:]} == {1e-3}, "as somebody had decided"
    started = room.events("attempt-started")[-1]
    assert (started.data["resumed_from"], started.data["steps_made"]) == (8, 8)
    kept = [r for r in before if isinstance(r, Decision) and r.kind == "set"]
    assert [r for r in read_journal(room.folder) if r in kept] == kept
    first, *_, last = read_segments(room.folder)
    assert (str(first.number), first.attempt, last.attempt) == ("1.00", 1, 2)
    assert last.parent is not None
    assert not (room.folder.path / ".book").exists()


def test_what_happened_after_the_last_sign_of_it_is_made_again(room: Room) -> None:
    """The run log goes before each checkpoint: what is lost is what came after the last one."""

    class Deleted(BaseException):
        pass

    def delete() -> None:
        raise Deleted

    with pytest.raises(Deleted):  # the save at step 10 waits for the one at step 5
        room.train(20, at={12: delete}, in_step=True)
    room.lose()
    room.train(14)
    began, again = (e.data["resumed_from"] for e in room.events("attempt-started"))
    assert began is None
    assert again in (5, 10)
    assert load_ledger(room.folder)[0].checkpoint_health[again].health in ("verified", "good")


def test_a_decision_does_not_wait_for_the_next_checkpoint_to_be_safe(room: Room) -> None:
    class Deleted(BaseException):
        pass

    def delete() -> None:
        deadline = time.monotonic() + DEADLINE_S
        pages = room.store / "drill" / "book" / "pages"
        while True:
            run_log = find_run_log(StoreFiles(f"{room.store}/drill"))
            places = [place_of(page) for page in run_log.newest.pages if "events" in page.name]
            sent = [(pages.parent.parent / place).read_bytes() for place in places]
            if any(b"optim.lr" in page for page in sent):
                raise Deleted
            assert time.monotonic() < deadline, "the decision was not sent"
            time.sleep(0.01)

    lowered = room.ask("set", path="optim.lr", value=1e-3)
    with pytest.raises(Deleted):
        room.train(40, "checkpoint.interval_steps=10",
                   **two_steps_after(10, lowered, lambda: None, delete))  # fmt: skip
    room.lose()
    room.train(16)
    assert room.events("attempt-started")[-1].data["resumed_from"] == 10
    assert load_ledger(room.folder)[0].overrides_at(16) == {"optim.lr": 1e-3}
    steps = [r for r in read_journal(room.folder) if isinstance(r, StepRecord)]
    assert {s.learning_rate for s in steps if s.attempt == 2} == {1e-3}


def test_a_recipe_of_another_model_is_refused_and_leaves_nothing(room: Room) -> None:
    room.train(6)
    with pytest.raises(RecipeError) as local:
        room.train(8, "model.layers=2")
    room.lose()
    with pytest.raises(RecipeError) as remote:
        room.train(8, "model.layers=2")
    assert remote.value.message == local.value.message
    assert "model.layers: 1 → 2" in remote.value.message
    assert not room.folder.path.exists()
    room.train(8)
    assert room.events("attempt-started")[-1].data["resumed_from"] == 6


def test_new_begins_another_run_beside_one_that_only_the_store_has(room: Room) -> None:
    room.train(6)
    room.lose()
    room.train(6, new=True)
    assert [folder.name for folder in list_runs(room.runs)] == ["drill-2"]
    assert {path.name for path in room.store.iterdir()} == {"drill", "drill-2"}
    room.train(8)
    assert room.events("attempt-started")[-1].data["resumed_from"] == 6


def test_a_finished_run_that_is_lost_is_still_finished(room: Room) -> None:
    room.train(6)
    room.lose()
    assert room.train(6) is ExitCode.FINISHED
    assert "run drill is finished: 6 steps" in room.said


def test_a_store_that_is_silent_is_waited_for_where_nothing_is_here(room: Room) -> None:
    room.train(6)
    room.lose()
    kept = room.store.with_name("kept")
    room.store.rename(kept)
    room.store.write_text("away")
    with pytest.raises(StoreNeeded, match="nothing of run drill is here") as raised:
        room.train(8)
    assert raised.value.exit_code == ExitCode.START_AGAIN
    assert not room.folder.path.exists()
    room.store.unlink()
    kept.rename(room.store)
    room.train(8)
    assert room.events("attempt-started")[-1].data["resumed_from"] == 6


def test_what_is_cut_off_half_way_is_begun_again(room: Room, monkeypatch) -> None:
    room.train(6)
    room.lose()

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as then:
        then.setattr(bring_back, "leave_behind", die)
        with pytest.raises(Killed):
            room.train(8)
    assert (room.folder.path / ".book").exists()
    segments = list(room.folder.segments.glob("*/settings.json"))
    assert segments, "some of it is in its place already"
    segments[0].unlink()
    with pytest.raises(NeedsPerson, match="not all of it is here"):
        room.train(8, "checkpoint.remote=[]")
    room.train(8)
    assert segments[0].exists()
    (told,) = room.events("brought-back")
    assert told.attempt == 2
    assert room.events("attempt-started")[-1].data["resumed_from"] == 6


def test_pages_that_are_gone_are_said_by_name_and_the_run_goes_on(room: Room) -> None:
    room.train(6)
    room.lose()
    for page in (room.store / "drill" / "book" / "pages").glob("segments-*"):
        page.unlink()
    room.train(8)
    assert "WARNING: of the run log could not be had: segments/1.00/settings.json" in room.said
    (told,) = room.events("brought-back")
    assert told.data["lacking"][0] == "segments/1.00/settings.json (nothing is left of it)"
    assert room.events("attempt-started")[-1].data["resumed_from"] == 6


def test_a_book_that_is_wholly_gone_leaves_the_weights(room: Room) -> None:
    room.train(6)
    room.lose()
    shutil.rmtree(room.store / "drill" / "book")
    room.train(8)
    assert room.events("brought-back") == []
    assert room.events("attempt-started")[-1].data["resumed_from"] == 6


def test_a_run_goes_back_to_a_checkpoint_that_only_the_store_has(room: Room) -> None:
    everything = ("checkpoint.remote_keep_last=9", "checkpoint.keep_last=1",
                  "checkpoint.interval_steps=10", "recover.probation_steps=100")  # fmt: skip
    back = room.ask("rollback", to=14)
    room.train(39, *everything, **two_steps_after(30, back))
    (fetched,) = room.events("fetched")
    assert fetched.step == 10
    (rolled,) = room.events("rolled-back")
    left = rolled.data["left"]
    assert 31 < left < 39
    assert (rolled.data["to"], rolled.data["where"]) == (10, "disk")
    (decision,) = (
        r for r in read_journal(room.folder) if isinstance(r, Decision) and r.kind == "recover"
    )
    assert [step for step, _ in decision.data["poison"]] == [20, 30], "wherever they lie"
    steps = [r.step for r in read_journal(room.folder) if isinstance(r, StepRecord)]
    assert steps == [*range(1, left + 1), *range(11, 40)]


def test_where_the_store_is_silent_the_next_sound_state_is_gone_back_to(room: Room) -> None:
    everything = ("checkpoint.remote_keep_last=9", "checkpoint.keep_every=10",
                  "checkpoint.keep_last=1", "recover.probation_steps=100")  # fmt: skip
    kept = room.store.with_name("kept")

    def away() -> None:
        room.store.rename(kept)
        room.store.write_text("away")
        room.ask("rollback", to=16)()

    room.train(39, *everything, **two_steps_after(25, away))
    assert "step 15 cannot be had; going back to another state" in room.said
    assert [event.data["to"] for event in room.events("rolled-back")] == [10]
    assert not room.events("fetched")


def test_a_resting_run_is_asked_to_go_back_to_what_the_store_has(room: Room) -> None:
    everything = ("checkpoint.remote_keep_last=9", "checkpoint.keep_last=1",
                  "recover.probation_steps=100")  # fmt: skip
    room.train(16, *everything, in_step=True)
    here = [c.step for c in catalogue(room.folder.checkpoints)]
    assert 5 not in here
    with pytest.raises(UsageError, match="no state of that step or before"):
        request_rollback(room.folder, 4, "", 0)
    assert "when it is next started" in request_rollback(room.folder, 5, "look again", 0)
    room.train(16, *everything)
    assert [e.data["to"] for e in room.events("rolled-back")] == [5]


POISONED_DRAWS = range(92, 108)  # steps 24 to 27, at four blocks a step
NOTHING_HERE = (
    "checkpoint.remote_keep_last=9", "recover.probation_steps=3", "recover.margin_steps=2",
    "recover.skip_steps=6", "recover.max_skipped_share=0.9", "monitor.gauge_interval_steps=0",
    'recover.ladder.non_finite=[["rollback", "skip"]]',
)  # fmt: skip


@pytest.mark.parametrize("silent", [False, True])
def test_the_policy_fetches_what_it_goes_back_to_where_nothing_here_will_do(
    room: Room, poison_draws: Callable[[Collection[int]], None], silent: bool
) -> None:
    def lose_checkpoints() -> None:
        shutil.rmtree(room.folder.checkpoints)
        if silent:
            room.store.rename(room.store.with_name("kept"))
            room.store.write_text("away")

    poison_draws(POISONED_DRAWS)
    room.train(32, *NOTHING_HERE, saved={20: lose_checkpoints}, in_step=True)
    made = [r for r in read_journal(room.folder) if isinstance(r, Decision)]
    back = [d.data["rollback"]["to"] for d in made if d.data.get("rollback")]
    fetched = [event.step for event in room.events("fetched")]
    if silent:
        assert (back, fetched) == ([], []), "no decision is made that cannot be carried out"
        assert "cannot be had; going back to another state" in room.said
    else:
        assert back == fetched
        assert back[0] in (10, 15, 20)
        assert room.events("rolled-back")[0].data["to"] == back[0]
