"""Cause before cure in whole runs: a verdict comes before the action, and shapes it."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
import torch

from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.faults import HANDLERS, Point
from longhaul.core.records import Event, StepRecord
from longhaul.diagnose.signs import Series, Symptom
from longhaul.logbook.run_spec import read_run_spec
from longhaul.recover.backtest import replay
from longhaul.run.diagnose import live_cause
from longhaul.run.diagnose.live_search import LiveSearch
from longhaul.train import borrowed_step
from longhaul.train.trainer import Trainer
from poison import poison
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32", "model.dropout=0.0",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=4", "batch.stages=[]",
    "optim.schedule.shape=constant", "optim.schedule.warmup_steps=2",
    "evaluation.tokens=256", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=10", "checkpoint.keep_last=9",
    "checkpoint.snapshot_interval_steps=5", "monitor.gauge_interval_steps=4",
    "recover.probation_steps=3", "recover.margin_steps=2", "recover.skip_steps=6",
    "recover.max_skipped_share=0.9", "recover.raise_after_steps=1000",
)  # fmt: skip
SKIP = '[["rollback", "skip"]]'
LOWER = '[["rollback", "lower-lr"]]'
TIGHTEN = '[["tighten-clip"]]'
LOWER_IN_PLACE = '[["lower-lr"]]'
POISONED_DRAWS = range(92, 108)  # steps 24 to 27, at four blocks a step
NOISY_DRAWS = range(480, 520)  # steps 121 to 130: a spike is told from a history


def every_ladder(ladder: str) -> tuple[str, ...]:
    return tuple(f"recover.ladder.{k}={ladder}" for k in ("non_finite", "loss_spike", "divergence"))


@pytest.fixture
def other(tmp_path, new_room):
    return new_room(tmp_path / "other")


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Something befalls the steps that read some draws, whenever they are made."""

    def of_kind(kind: str) -> None:
        made: set[int] = set()

        def spared(batch: Any) -> bool:
            if kind == "once":
                again = batch.draw in made
                made.add(batch.draw)
                return again
            # The math form of attention, which plain steps use, switches this flag off.
            return kind == "kernel" and not torch.backends.cuda.flash_sdp_enabled()

        def noise(batch: Any, **context: Any) -> Any:
            since = batch.draw >= NOISY_DRAWS.start and kind == "noise for good"
            if batch.draw not in NOISY_DRAWS and not since:
                return batch
            chance = torch.Generator().manual_seed(batch.draw)
            tokens = torch.randint(128, 256, batch.tokens_BT.shape, generator=chance)
            return replace(batch, tokens_BT=tokens, targets_BT=tokens)

        if kind.startswith("noise"):
            monkeypatch.setitem(HANDLERS, Point.BATCH, [noise])
        else:
            poison(POISONED_DRAWS, spared, monkeypatch.setitem)

    return of_kind


@pytest.mark.parametrize(
    ("kind", "steps"), [("nan", 48), pytest.param("noise", 150, marks=pytest.mark.slow)]
)
def test_poisoned_data_is_passed_over_at_the_same_rate_whatever_the_ladder_says(
    room, spoil: Callable[[str], None], kind: str, steps: int
) -> None:
    spoil(kind)
    assert room.train(steps, *every_ladder(LOWER)) is ExitCode.FINISHED, room.said
    (decision,) = room.recoveries()
    assert decision.data["verdict"]["cause"] == "data", room.said
    assert decision.data["actions"] == ["rollback", "skip"]
    assert decision.data["set"] == {}
    (told,) = room.events("cause")
    assert (told.data["cause"], told.step) == ("data", decision.step)
    assert told.data["reason"] == decision.data["verdict"]["sentence"]
    assert told.data["reason"] in room.said
    assert 0 < told.data["replayed_steps"] <= (200 if kind == "noise" else 100)
    assert told.seconds["detection"] > 0
    rungs = told.data["rungs"]
    assert {"recorded", "as trained", "0.5 of the rate", "other data 1"} <= rungs.keys()
    made = [r for r in room.records() if isinstance(r, StepRecord)]
    assert {r.learning_rate for r in made if r.step > 2} == {2e-3}


def test_text_that_has_changed_for_good_is_gone_on_with(room, spoil: Callable[[str], None]) -> None:
    spoil("noise for good")
    assert room.train(150, *every_ladder(SKIP)) is ExitCode.FINISHED, room.said
    (decision,) = room.recoveries()
    assert decision.data["actions"] == ["accept"], room.said
    assert decision.data["verdict"]["rung"] == "rest"
    (told,) = room.events("cause")
    assert {"at rest, before", "at rest, far ahead"} <= told.data["rungs"].keys()
    assert told.data["replayed_steps"] <= 200
    (changed,) = room.events("data-changed")
    assert changed.step == decision.step
    made = [r.step for r in room.records() if isinstance(r, StepRecord)]
    assert made == list(range(1, 151)), "no step is made again"


@pytest.mark.parametrize("ladder", [SKIP, pytest.param(TIGHTEN, marks=pytest.mark.slow)])
def test_it_is_gone_on_with_where_gradients_stand_out_and_before_a_tighter_clip(
    room, spoil: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, ladder: str
) -> None:
    def of_gradients(recorded: Series, step: int) -> Symptom:
        norms = [figures.gradient_norm for figures in recorded]
        return Symptom("gradient-spike", step, step, median(norms[:100]), 3 * max(norms))

    monkeypatch.setattr(live_cause, "symptom_of", of_gradients)
    spoil("noise for good")
    assert room.train(150, *every_ladder(ladder)) is ExitCode.FINISHED, room.said
    (decision,) = room.recoveries()
    assert decision.data["actions"] == ["accept"], room.said
    (told,) = room.events("cause")
    assert told.data["rung"] == "rest"
    searched = ladder is SKIP
    assert ("as trained" in told.data["rungs"]) is searched, "a tighter clip asks for data only"


def test_a_tighter_clip_follows_where_the_data_is_what_it_was(
    room, spoil: Callable[[str], None]
) -> None:
    spoil("noise")
    assert room.train(150, *every_ladder(TIGHTEN)) is ExitCode.FINISHED, room.said
    decision = room.recoveries()[0]
    assert decision.data["actions"] == ["tighten-clip"], room.said
    told = room.events("cause")[0]
    assert told.data["cause"] == "undetermined"
    assert "weights at rest" in told.data["reason"]
    assert told.data["replayed_steps"] <= 70


def test_a_rate_that_is_too_high_is_lowered_and_no_data_is_passed_over(room) -> None:
    wild = ("optim.lr=30.0", "optim.schedule.warmup_steps=120", "batch.sequences=8")
    with suppress(NeedsPerson):  # at such a rate one recovery may not be enough
        room.train(48, *wild, *every_ladder(SKIP), "recover.max_recoveries=1")
    decision = room.recoveries()[0]
    assert decision.data["verdict"]["cause"] == "hyper-parameter", room.said
    assert "lower-lr" in decision.data["actions"]
    assert decision.data["set"]["optim.lr"] <= 15.0
    assert decision.data["skip"] is None
    told = room.events("cause")[0].data
    assert "0.125 of the rate" in told["rungs"], "lower rates are tried until one works"
    factor, too_high = told["evidence"]["factor"], told["evidence"]["too_high"]
    assert decision.data["set"]["optim.lr"] == pytest.approx(30.0 * factor)
    assert factor < too_high in (1.0, 0.5, 0.125, 1 / 32, 1 / 128, 1 / 512, 1 / 2048)
    assert told["replayed_steps"] <= 200
    assert len(decision.data["failed"]) == 1 + (too_high < 1)


def test_a_kernel_that_computes_wrong_numbers_stops_the_run_with_a_reason(
    room, spoil: Callable[[str], None]
) -> None:
    spoil("kernel")
    with pytest.raises(NeedsPerson, match="eager float32, unsharded, computes step 24") as told:
        room.train(40, *every_ladder(SKIP))
    assert told.value.exit_code == ExitCode.NEEDS_PERSON
    (decision,) = room.recoveries()
    assert decision.data["verdict"]["cause"] == "parallel or kernel bug"
    assert decision.data["actions"] == ["rollback", "stop"]


@pytest.mark.parametrize(
    ("ladder", "fails"),
    [
        (SKIP, True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((SKIP, False), (LOWER_IN_PLACE, True), (LOWER_IN_PLACE, False))
        ),
    ],
)
def test_looking_for_the_cause_changes_no_bit_of_a_run_that_does_the_same(
    room,
    other,
    spoil: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    ladder: str,
    fails: bool,
) -> None:
    spoil("nan")
    options = (*every_ladder(ladder), "model.dropout=0.3", "batch.micro_sequences=2")
    other.train(40, *options, "recover.diagnose=false")
    assert not other.events("cause")
    if fails:

        def broken(*given: Any) -> Any:
            raise RuntimeError("the device is out of memory")

        monkeypatch.setattr(LiveSearch, "other_data", broken)
    assert room.train(40, *options) is ExitCode.FINISHED, room.said
    told = room.events("cause")[0]
    assert told.data["cause"] == ("undetermined" if fails else "data")
    if fails:
        assert "RuntimeError: the device is out of memory" in told.data["reason"]
    assert told.data["replayed_steps"] > 20
    own, same = room.recoveries(), other.recoveries()
    assert [d.data["actions"] for d in own] == [d.data["actions"] for d in same]
    assert [d.data["skip"] for d in own] == [d.data["skip"] for d in same]
    assert room.state() == other.state()


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("recover.diagnose_steps allows 3", ("recover.diagnose_steps=3",)),
        pytest.param(
            "no state is left", ("checkpoint.snapshot_interval_steps=0",), marks=pytest.mark.slow
        ),
        pytest.param("the host has no", (), marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_looked_for_is_said_and_the_drafted_plan_is_carried_out(
    room,
    spoil: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    options: tuple[str, ...],
) -> None:
    spoil("nan")
    if why == "the host has no":
        monkeypatch.setattr(borrowed_step, "available_memory", lambda: 1000)
    if why == "no state is left":
        options = (*options, "checkpoint.interval_steps=0")
    with suppress(NeedsPerson):  # a lower rate does not help bad data
        room.train(40, *every_ladder(LOWER), *options, "recover.max_recoveries=1")
    told = room.events("cause")[0]
    assert why in told.data["reason"], told.data
    decision = room.recoveries()[0]
    assert decision.data["verdict"]["cause"] == "undetermined"
    assert "lower-lr" in decision.data["actions"]


def test_what_no_replay_shows_again_accuses_no_machine_and_says_what_was_not_asked(
    room, spoil: Callable[[str], None]
) -> None:
    spoil("once")
    assert room.train(40, *every_ladder(SKIP)) is ExitCode.FINISHED, room.said
    told = room.events("cause")[0].data
    assert told["cause"] == "undetermined"
    assert "a live run asks no other device" in told["reason"]
    assert told["skipped"]["witness"] in told["reason"]


def test_who_has_to_stop_does_not_look_for_causes(
    room, spoil: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is taken away gives seconds of notice, and replays may take minutes."""
    spoil("nan")
    honest = LiveSearch._at_rate

    def preempted(self: Any, ladder: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return honest(self, ladder, **named)

    monkeypatch.setattr(LiveSearch, "_at_rate", preempted)
    assert room.train(40, *every_ladder(SKIP)) is ExitCode.START_AGAIN, room.said
    told = room.events("cause")[0].data
    assert "the run has to stop" in told["reason"]
    assert told["rungs"].keys() == {"recorded", "as trained", "eager float32"}
    assert room.recoveries()[0].data["actions"] == ["rollback", "skip"]


def test_bytes_that_changed_in_memory_are_gone_back_behind_from_the_disk(
    room, spoil: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil("nan")
    honest = Trainer.borrow_step

    def damaged(self: Trainer, copies: int) -> Any:
        for held in self.snapshots._held:
            held.buffer[1] ^= 1
        return honest(self, copies)

    monkeypatch.setattr(Trainer, "borrow_step", damaged)
    back_to_15 = "recover.margin_steps=8"
    assert room.train(40, *every_ladder(SKIP), back_to_15) is ExitCode.FINISHED, room.said
    assert "has changed in the host's memory" in room.events("cause")[0].data["reason"]
    (back,) = [r for r in room.records() if isinstance(r, Event) and r.kind == "rolled-back"]
    assert (back.data["where"], back.step) == ("disk", 10)


def test_steps_that_do_not_fit_leave_rungs_out(room, spoil: Callable[[str], None]) -> None:
    spoil("nan")
    room.train(40, *every_ladder(SKIP), "recover.diagnose_steps=24")
    told = room.events("cause")[0].data
    assert told["cause"] == "undetermined"
    assert told["replayed_steps"] <= 24
    assert "recover.diagnose_steps allows 24" in told["reason"]
    assert {"rate", "data"} & told["skipped"].keys()


def test_a_journal_judged_again_comes_to_the_same_plans(room, spoil: Callable[[str], None]) -> None:
    spoil("nan")
    room.train(48, *every_ladder(LOWER))
    recipe = read_run_spec(room.folder).settings()
    again = replay(room.records(), recipe)
    turns = [turn for turn in again.turns if turn.live is not None and turn.would is not None]
    (turn,) = [turn for turn in turns if turn.would.effects]
    would, live = turn.would.decision_data(turn.step), turn.live.data
    for name in ("cause", "actions", "rollback", "skip", "set", "verdict"):
        assert would[name] == live[name], name
