"""Rollbacks and forks through whole runs, within this process."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors import safe_open

from fakes import FakeClock, SilentView
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode, NeedsPerson, RecipeError, UsageError
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.description import readable_line
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import RunGone
from longhaul.logbook.ledger import fold_all, load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.requests import pending, submit
from longhaul.logbook.run_history import read_run_history
from longhaul.logbook.segments import read_segments
from longhaul.run.train import request_handler
from longhaul.run.train.control_requests import (
    request_fork,
    request_note,
    request_rollback,
    request_set,
)
from longhaul.run.train.launch import Start, start
from longhaul.run.trained import open_trained
from longhaul.store.catalogue import catalogue
from longhaul.train.rollback import Recovery
from longhaul.train.trainer import Trainer
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32", "model.dropout=0.3",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=2", "batch.stages=[]",
    "optim.schedule.shape=constant", "optim.schedule.warmup_steps=2",
    "evaluation.tokens=256", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=5", "checkpoint.keep_last=9",
    "checkpoint.snapshot_interval_steps=3",
)  # fmt: skip
NO_MEMORY = "checkpoint.snapshot_mb=0.0"


class Watcher(SilentView):
    """Asks for something when a step is shown."""

    def __init__(self, at: dict[int, Callable[[], None]]) -> None:
        super().__init__()
        self.at = at

    def show(self, record: StepRecord | Event) -> None:
        if isinstance(record, StepRecord) and record.step in self.at:
            self.at.pop(record.step)()


class Room:
    def __init__(self, path: Path, prepared: Path) -> None:
        self.path, self.prepared, self.said = path, prepared, ""
        self.folder = RunFolder(path / "drill")

    def train(
        self, steps: int, *options: str, at: dict[int, Callable[[], None]] | None = None
    ) -> None:
        view = Watcher(at or {})
        typed = (*TINY, f"train.steps={steps}", *options)
        code = start(Start("drill", typed, runs=self.path, prepared=self.prepared), view)
        self.said = "\n".join(view.said)
        assert code is ExitCode.FINISHED, self.said

    def ask(self, kind: str, **data: Any) -> Callable[[], None]:
        def submitted() -> None:
            clock = RealClock()
            submit(self.folder, kind, data, who="anna", reason="it looked hot", clock=clock)

        return submitted

    def steps(self) -> list[StepRecord]:
        return [r for r in read_journal(self.folder) if isinstance(r, StepRecord)]

    def events(self, kind: str) -> list[Event]:
        records = read_journal(self.folder, steps=False)
        return [r for r in records if isinstance(r, Event) and r.kind == kind]

    def recoveries(self) -> list[Decision]:
        records = read_journal(self.folder, steps=False)
        return [r for r in records if isinstance(r, Decision) and r.kind == "recover"]

    def state(self) -> dict[str, bytes]:
        found = {}
        for path in sorted(catalogue(self.folder.checkpoints)[-1].path.glob("*.safetensors")):
            with safe_open(str(path), framework="numpy") as file:
                found |= {k: file.get_tensor(k).tobytes() for k in file.keys()}  # noqa: SIM118
        return found


@pytest.fixture
def room(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch, saves_in_step: None
) -> Room:
    monkeypatch.setattr(request_handler, "_LOOK_EVERY_S", 0.0)
    return Room(tmp_path / "runs", prepared)


@pytest.fixture
def plain(tmp_path: Path, prepared: Path) -> Room:
    return Room(tmp_path / "plain", prepared)


@pytest.mark.parametrize(("options", "where", "to"), [((), "memory", 9), ((NO_MEMORY,), "disk", 5)])
def test_a_live_run_goes_back_and_ends_in_the_bytes_of_one_that_never_did(
    room: Room, plain: Room, options: tuple[str, ...], where: str, to: int
) -> None:
    room.train(16, *options, at={11: room.ask("rollback", to=9)})
    assert [r.step for r in room.steps()] == [*range(1, 12), *range(to + 1, 17)]
    assert [r.step for r in room.steps() if r.redone] == list(range(to + 1, 12))
    (decision,) = room.recoveries()
    assert (decision.who, decision.reason, decision.step) == ("anna", "it looked hot", 11)
    assert decision.data["rollback"] == {"from": 11, "to": to, "draw": to * 4}
    assert [step for step, _ in decision.data["poison"]] == [10]
    price = decision.data["price"]
    assert price["steps_lost"] == 11 - to
    assert price["seconds_lost"] > 0
    (back,) = room.events("rolled-back")
    assert (back.data["left"], back.data["to"], back.data["where"]) == (11, to, where)
    first, second = read_segments(room.folder)
    assert (second.parent, second.reason, second.step) == (first.number, "it looked hot", to)
    assert second.checkpoint == (None if where == "memory" else to)
    plain.train(16)
    assert room.state() == plain.state()
    assert {c.step for c in catalogue(room.folder.checkpoints)} == {5, 10, 15, 16}
    assert read_run_history(room.folder).steps_made == 16


def test_what_was_poisoned_is_saved_anew_at_the_same_step(room: Room) -> None:
    room.train(12, at={11: room.ask("rollback", to=6)})
    ledger, _ = load_ledger(room.folder)
    manifests = {c.step: c.manifest_sha256 for c in catalogue(room.folder.checkpoints)}
    (poisoned,) = room.recoveries()[0].data["poison"]
    assert poisoned[0] == 10
    assert manifests[10] != poisoned[1]
    assert ledger.checkpoint_health[10].health == "verified"


def test_a_rollback_poisons_all_that_was_ever_saved_beyond_it_and_a_tier_may_hold(
    room: Room,
) -> None:
    """A crash had step 10 saved twice; the tier has the first, and an unknown step 15."""
    words = [(10, "verified", "first"), (10, "verified", "second"), (5, "verified", "kept")]
    ledger = fold_all(
        Decision(kind="checkpoint-health", attempt=1, step=step, time=1.0, who="pilot", reason="",
                 data={"checkpoint": step, "health": word, "manifest": manifest})
        for step, word, manifest in words
    )  # fmt: skip
    run_log = SimpleNamespace(folder=room.folder, ledger=ledger)
    tiers = SimpleNamespace(any=True, unpoisoned=lambda: {(5, "kept"), (15, "unknown")})
    recovery = Recovery(run_log, None, {}, print, tiers)
    assert recovery._beyond(6) == [[10, "first"], [10, "second"], [15, "unknown"]]


def test_a_rollback_leaves_nothing_poisoned_in_the_tier(room: Room, tmp_path: Path) -> None:
    remote = f"checkpoint.remote={[str(tmp_path / 'remote')]}"
    room.train(14, remote, at={13: room.ask("rollback", to=6)})
    ((step, poisoned),) = room.recoveries()[0].data["poison"]
    ends = [
        record.data["manifest"]
        for record in read_journal(room.folder, steps=False)
        if isinstance(record, Event) and record.kind in ("remote-removed", "upload-dropped")
    ]
    assert step == 10
    assert poisoned in ends
    assert not list((tmp_path / "remote" / "drill").glob(f"step-10-{poisoned[:12]}"))


def test_a_manifest_that_rots_here_does_not_poison_the_sound_copy_gone_on_from(
    room: Room, tmp_path: Path
) -> None:
    remote = f"checkpoint.remote={[str(tmp_path / 'remote')]}"
    room.train(10, remote)
    (room.folder.checkpoints / "step-10" / "manifest.json").write_bytes(b"{}")
    room.train(12, remote)
    assert room.events("attempt-started")[-1].data["resumed_from"] == 10
    ledger, _ = load_ledger(room.folder)
    assert ledger.checkpoint_health[10].health in ("verified", "good")


class Killed(BaseException):
    """What SIGKILL would do: nothing of the run's own ending is reached."""


def kill() -> None:
    raise Killed


ALONE = ("checkpoint.keep_last=1", "recover.probation_steps=100")
"""Nothing becomes good in time, and one checkpoint is kept."""


def test_killed_right_after_a_rollback_the_state_gone_back_to_is_still_there(room: Room) -> None:
    def back_then_die() -> None:
        room.ask("rollback", to=3)()
        room.at[4] = kill

    room.at = {11: back_then_die}
    with pytest.raises(Killed):
        room.train(12, *ALONE, at=room.at)
    poisoned = [step for step, _ in room.recoveries()[0].data["poison"]]
    assert poisoned == [5, 10], "every checkpoint there was"
    room.train(12, *ALONE)
    assert room.events("attempt-started")[-1].data["resumed_from"] == 3


@pytest.mark.parametrize(("to", "resumed_from"), [(6, 5), (3, None)])
def test_killed_before_a_rollback_could_save_anything_the_run_still_goes_on(
    room: Room,
    plain: Room,
    monkeypatch: pytest.MonkeyPatch,
    to: int,
    resumed_from: int | None,
) -> None:
    """The decision holds and has poisoned what lies beyond it; the snapshot died with the
    process."""
    with monkeypatch.context() as then:
        then.setattr(Trainer, "roll_back", lambda self, *given: kill())
        with pytest.raises(Killed):
            room.train(24, *ALONE, at={22: room.ask("rollback", to=to)})
    oldest = catalogue(room.folder.checkpoints)[0]
    assert oldest.step == 5, "there is none as old as the snapshots, hence the first stays"
    room.train(24, *ALONE)
    assert room.events("attempt-started")[-1].data["resumed_from"] == resumed_from
    begun = resumed_from or 0
    assert [r.step for r in room.steps()][22:] == list(range(begun + 1, 25))
    assert ("from the beginning" in room.said) is (resumed_from is None)
    plain.train(24, *ALONE)
    assert room.state() == plain.state()


def test_where_no_checkpoint_is_left_to_go_on_from_the_reason_is_said(room: Room) -> None:
    room.train(12, at={11: room.ask("rollback", to=6)})
    for checkpoint in catalogue(room.folder.checkpoints):
        (checkpoint.path / "manifest.json").write_text("{")
    with pytest.raises(NeedsPerson, match=r"none of the 3 checkpoints .* can be used: .*manifest"):
        room.train(14)


def test_a_run_that_rests_goes_back_when_it_is_next_started(room: Room, plain: Room) -> None:
    room.train(12)
    said = request_rollback(room.folder, 5, "too far", 0)
    assert "when it is next started" in said
    room.train(12)
    assert [r.step for r in room.steps()] == [*range(1, 13), *range(6, 13)]
    assert room.recoveries()[0].data["poison"][0][0] == 10
    plain.train(12)
    assert room.state() == plain.state()


def test_stopping_where_a_rollback_led_saves_there(room: Room) -> None:
    room.train(10)
    request_rollback(room.folder, 8, "", 0)
    view = Watcher({6: room.ask("stop")})
    typed = Start("drill", runs=room.path, prepared=room.prepared)
    assert start(typed, view) is ExitCode.START_AGAIN
    assert [r.step for r in room.steps()][10:] == [6]
    assert catalogue(room.folder.checkpoints)[-1].step == 6


def test_a_run_whose_folder_goes_right_before_its_end_has_not_ended_well(room: Room) -> None:
    def delete() -> None:
        while room.folder.path.exists():  # a save may be under way
            shutil.rmtree(room.folder.path, ignore_errors=True)

    with pytest.raises(RunGone, match="at step 12") as gone:
        room.train(12, at={12: delete})
    assert gone.value.exit_code is ExitCode.NEEDS_PERSON
    assert not room.folder.path.exists()


def ask_stop_at(folder: RunFolder, wall: float) -> None:
    clock = FakeClock(wall)
    submit(folder, "stop", {}, who="anna", reason="", clock=clock)


def test_a_stop_is_granted_however_far_the_clock_was_set_back(room: Room) -> None:
    view = Watcher({6: lambda: ask_stop_at(room.folder, 1000.0)})
    typed = Start("drill", (*TINY, "train.steps=16"), runs=room.path, prepared=room.prepared)
    assert start(typed, view) is ExitCode.START_AGAIN, view.said
    assert room.steps()[-1].step < 16


def test_a_stop_asked_of_an_attempt_that_has_ended_stops_no_later_one(room: Room) -> None:
    room.train(6)
    ask_stop_at(room.folder, RealClock().wall() + 3600)  # its clock is ahead
    room.train(12)
    (refused,) = room.events("request-refused")
    assert "an earlier attempt" in refused.data["reason"]


def test_a_checkpoint_that_was_gone_back_behind_is_no_end_of_a_run(room: Room) -> None:
    def back_then_stop() -> None:
        room.ask("rollback", to=9)()
        view.at[10] = room.ask("stop")  # at the step of a checkpoint that is poisoned by then

    view = Watcher({11: back_then_stop})
    typed = Start("drill", (*TINY, "train.steps=16"), runs=room.path, prepared=room.prepared)
    assert start(typed, view) is ExitCode.START_AGAIN
    ledger, _ = load_ledger(room.folder)
    assert ledger.checkpoint_health[10].health == "verified"
    (poisoned,) = room.recoveries()[0].data["poison"]
    assert ledger.checkpoint_health[10].manifest != poisoned[1]


BAD_REQUESTS = (
    ("rollback", {"to": 40}, "the run stands at step 8; nothing to go back to"),
    ("rollback", {"to": -1}, "no state of step -1 or before is left; there are: 0, 3"),
    ("rollback", {"to": "x"}, "makes no sense"),
    ("fork", {"at": 9}, "the run has come to step 8 only"),
    ("fork", {"at": 5, "reset": ["brain"]}, "reset brain: not one of optimizer"),
    ("fork", {"at": 5, "set": {"optim.lr": -1}}, "-1 is not > 0"),
    ("fork", {"at": 5, "set": {"model.width": 32}}, "cannot change while"),
    ("fork", {"at": 5, "set": {"optim.lr": 1e30}}, "5e+32 times the 0.002 in force"),
    ("set", {"path": "optim.lr", "value": 1e-12}, "5e-10 times the 0.002 in force"),
    ("set", {"path": "optim.lr", "value": -1}, "-1 is not > 0.0 (asked by anna)"),
    ("set", {"path": "optim.schedule.from_step", "value": 9}, "9 lies ahead"),
    ("fork", {"at": 5, "set": {"optim.schedule.from_step": 7}}, "7 lies ahead"),
    ("note", {"text": " \n"}, "without a word"),
    ("fork", {"at": 5, "set": 7}, "makes no sense"),
    ("rollback", {}, "makes no sense (to: "),
    ("skip", {"begin": 5}, "makes no sense (end: "),
    ("dance", {}, "knows no such request"),
)


def test_bad_requests_are_refused_with_the_reason_and_change_nothing(
    room: Room, plain: Room
) -> None:
    asked = [room.ask(kind, **data) for kind, data, _ in BAD_REQUESTS]
    room.train(10, at={8: lambda: [ask() for ask in asked]})
    refused = room.events("request-refused")
    assert len(refused) == len(BAD_REQUESTS)
    for one, (_, _, told) in zip(refused, BAD_REQUESTS, strict=True):
        assert told in one.data["reason"]
    assert not room.recoveries()
    assert [r.step for r in room.steps()] == list(range(1, 11))
    assert len(read_segments(room.folder)) == 1
    assert not pending(room.folder)


@pytest.mark.parametrize("error", [TypeError, ValueError, KeyError])
def test_a_mistake_within_an_action_is_no_refusal(
    room: Room, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def mistaken(*_: Any, **__: Any) -> None:
        raise error("in our own code")

    monkeypatch.setattr(Recovery, "carry_out", mistaken)
    with pytest.raises(error, match="in our own code"):
        room.train(10, at={8: room.ask("rollback", to=5)})
    assert not room.events("request-refused")
    assert not pending(room.folder), "it would fail at every start from now on"


def test_a_fork_opens_the_next_major_with_its_settings_and_resets(room: Room) -> None:
    changes = {"optim.lr": 1e-4, "optim.weight_decay": 0.0}
    resets = ["optimizer", "data"]
    room.train(14, at={10: room.ask("fork", at=6, set=changes, reset=resets)})
    forked = [r for r in room.steps() if r.segment == "2.00"]
    assert [r.step for r in forked] == list(range(7, 15))
    assert [r.draw for r in forked] == list(range(0, 32, 4)), "the order of data begins anew"
    rates = [round(r.learning_rate / 1e-4, 3) for r in forked[:4]]
    assert rates == [0.333, 0.667, 1.0, 1.0], "two steps of warm-up, as at the start"
    assert [r.warmup for r in forked[:3]] == [True, True, False]
    opened = read_segments(room.folder)[-1]
    assert str(opened.parent) == "1.00"
    assert set(opened.difference) == set(changes)
    (decision,) = room.recoveries()
    assert decision.data["old"] == {"optim.lr": 2e-3, "optim.weight_decay": 0.1}
    room.train(16)
    assert [r.segment for r in room.steps()][-2:] == ["2.01", "2.01"]
    assert room.steps()[-1].learning_rate == 1e-4
    assert len(room.events("state-reset")) == 1, "a restart does not reset again"


@pytest.mark.parametrize("killed_in", [(Trainer, "roll_back"), (Recovery, "open_segment"), None])
def test_a_fork_that_was_killed_is_still_the_fork_that_was_asked_for(
    room: Room, monkeypatch: pytest.MonkeyPatch, killed_in: tuple[type, str] | None
) -> None:
    changes, resets = {"optim.lr": 1e-4}, ["optimizer", "data"]

    def fork_then_die() -> None:
        room.ask("fork", at=6, set=changes, reset=resets)()
        room.at[8] = kill

    room.at = {11: fork_then_die}
    with monkeypatch.context() as then:
        if killed_in is not None:
            then.setattr(*killed_in, lambda *given, **named: kill())
        with pytest.raises(Killed):
            room.train(12, at=room.at)
    room.train(12)
    last = read_segments(room.folder)[-1]
    assert str(last.number) == ("2.00" if killed_in else "2.01")
    assert last.checkpoint == 5
    assert ("it looked hot; restart" in last.reason) is bool(killed_in)
    again = [r for r in room.steps() if r.segment == str(last.number)]
    assert [r.draw for r in again] == list(range(0, 28, 4)), "from step 5, the data anew"
    assert [round(r.learning_rate / 1e-4, 3) for r in again[:4]] == [0.333, 0.667, 1.0, 1.0]


def test_what_was_asked_for_at_one_border_is_granted_in_turn(room: Room) -> None:
    def ask_a_lot() -> None:
        for kind, data in (
            ("note", {"text": "🚀\nzwei \u2028 drei"}),
            ("set", {"path": "optim.lr", "value": 1e-3, "from_step": 13}),
            ("rollback", {"to": 9}),
            ("fork", {"at": 9}),
            ("set", {"path": "optim.lr", "value": 5e-4}),
            ("rollback", {"to": 6}),
            ("rollback", {"to": 8}),
        ):
            room.ask(kind, **data)()

    room.train(15, at={11: ask_a_lot})
    (refused,) = room.events("request-refused")
    assert "step 8: the run stands at step 6; nothing to go back to" in refused.data["reason"]
    assert [d.data["rollback"] and d.data["rollback"]["to"] for d in room.recoveries()] == [
        9, None, 6,
    ]  # fmt: skip
    numbers = [str(opening.number) for opening in read_segments(room.folder)]
    assert numbers == ["1.00", "1.01", "2.00", "2.01", "2.02"]
    assert [r.step for r in room.steps()] == [*range(1, 12), *range(7, 16)]
    rates = {r.learning_rate for r in room.steps()[11:]}
    assert rates == {5e-4}, "what is asked for at once withdraws what was to begin later"
    (note,) = room.events("note")
    assert note.data["text"] == "🚀\nzwei \u2028 drei"
    assert readable_line(note).count("\n") == 0
    assert not pending(room.folder)


def test_a_fork_may_begin_the_schedule_anew(room: Room) -> None:
    linear = ("optim.schedule.shape=linear", "optim.schedule.final_fraction=0.0")
    room.train(12, *linear, at={8: room.ask("fork", at=6, reset=["schedule"])})
    forked = [r for r in room.steps() if r.segment == "2.00"]
    rates = [round(r.learning_rate / 2e-3, 3) for r in forked]
    assert rates == [0.333, 0.667, 1.0, 0.75, 0.5, 0.25]
    assert [r.warmup for r in forked] == [True, True, False, False, False, False]


def test_a_fork_of_a_finished_run_goes_on_when_it_is_next_started(room: Room) -> None:
    room.train(10)
    with pytest.raises(UsageError, match="has made steps up to 10"):
        request_fork(room.folder, 11, [], [], "", 0)
    request_fork(room.folder, 5, ["optim.lr=1e-5"], ["optimizer"], "plan B", 0)
    room.train(10)
    assert {r.learning_rate for r in room.steps()[12:]} == {1e-5}
    assert room.steps()[-1].segment == "2.00"


def test_what_a_resting_run_could_not_grant_is_refused_when_asked(room: Room) -> None:
    room.train(12, "checkpoint.keep_last=1", "recover.probation_steps=100")
    with pytest.raises(UsageError, match="nothing to go back to"):
        request_rollback(room.folder, 12, "", 0)
    with pytest.raises(UsageError, match="has no state of that step or before left"):
        request_rollback(room.folder, 3, "", 0)
    with pytest.raises(UsageError, match="has no state of that step or before left"):
        request_fork(room.folder, 3, [], [], "", 0)
    with pytest.raises(UsageError, match="reset brain: not one of optimizer"):
        request_fork(room.folder, 12, [], ["brain"], "", 0)
    assert not pending(room.folder)


def test_what_nobody_can_mean_is_refused_when_typed(room: Room) -> None:
    room.train(6)

    def change(path_and_value: str, force: bool = False) -> str:
        return request_set(room.folder, path_and_value, "", 0, force=force)

    with pytest.raises(UsageError, match="--force"):
        change("optim.lr=1e30")
    with pytest.raises(UsageError, match="lies ahead"):
        change("optim.schedule.from_step=7")
    with pytest.raises(RecipeError, match=r"-1 is not > 0.0 \(optim.lr=-1\)"):
        change("optim.lr=-1")
    with pytest.raises(RecipeError, match=r"\(--set optim.lr=-1\)"):
        request_fork(room.folder, 5, ["optim.lr=-1"], [], "", 0)
    with pytest.raises(UsageError, match=r"optim\.lr: given twice"):
        request_fork(room.folder, 5, ["optim.lr=1e-3", "optim.lr=1e-4"], [], "", 0)
    with pytest.raises(UsageError, match="without a word"):
        request_note(room.folder, "\n ", 0)
    assert not pending(room.folder)
    change("optim.lr=1e-9", force=True)
    room.train(7)
    assert not room.events("request-refused")
    assert room.steps()[-1].learning_rate == 1e-9


def test_the_optimizer_is_swapped_in_a_live_run_and_a_restart_keeps_it(room: Room) -> None:
    swap = room.ask("set", path="optim.name", value="sgdw")
    room.train(13, at={7: swap})
    (told,) = room.events("optimizer-swapped")
    assert (told.step, told.data["old"], told.data["new"]) == (7, "adamw", "sgdw")
    assert room.events("settings-read-back")[0].data["live"]["optimizer.name"] == "sgdw"
    assert any(name.endswith(".momentum") for name in room.state())
    back = room.ask("set", path="optim.name", value="adamw")
    room.train(16, at={14: back})
    assert len(room.events("optimizer-swapped")) == 2
    assert any(name.endswith(".exp_avg_sq") for name in room.state())


def test_activations_are_clamped_in_a_live_run_and_stay_so(room: Room) -> None:
    """Read at every step: from the boundary on, after a restart, and when the model is opened."""
    gauged = ("monitor.gauge_interval_steps=1", 'recover.mode="report"')
    clamp = room.ask("set", path="model.residual_clamp", value=0.03)

    def reached() -> list[float]:
        return [
            max(*r.gauges["residual_max"], *(-low for low in r.gauges["residual_min"]))
            for r in room.steps()
        ]

    room.train(10, *gauged, at={6: clamp})
    before, after = reached()[:6], reached()[6:]
    assert min(before) > 0.03
    assert max(after) == pytest.approx(0.03)
    assert read_segments(room.folder)[-1].difference == {"model.residual_clamp": (0.0, 0.03)}
    room.train(12, *gauged)
    assert max(reached()[10:]) == pytest.approx(0.03)
    assert open_trained("drill", room.path, None).model.residual_clamp == 0.03


def test_a_swap_before_the_next_checkpoint_is_made_again_at_the_restart(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = room.ask("set", path="optim.name", value="sgdw")
    with pytest.raises(Killed):
        room.train(12, at={7: swap, 9: kill})
    room.train(12)
    resumed = room.events("attempt-started")[-1]
    assert resumed.data["resumed_from"] == 5, "the checkpoint holds AdamW's state"
    assert resumed.data["live"]["optimizer.name"] == "sgdw"
    assert [e.step for e in room.events("optimizer-swapped")] == [7, 5]
    assert "optim.name 'adamw' → 'sgdw'" in room.said
    assert any(name.endswith(".momentum") for name in room.state())
