"""The closed loop through whole runs, within this process: trouble, finding, decision, recovery."""

import errno
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.records import Decision, Finding, StepRecord, from_line, to_line
from longhaul.data.verification import text_of
from longhaul.diagnose.diagnosis import Diagnosis
from longhaul.logbook import journal as journal_module
from longhaul.logbook.ledger import LedgerState, load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import read_run_spec
from longhaul.logbook.segments import read_segments
from longhaul.run.diagnose import saved_batch
from longhaul.run.diagnose.saved_batch import documents_at
from longhaul.train.rollback import Recovery
from longhaul.train.trainer import Trainer
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=4", "batch.stages=[]",
    "optim.schedule.shape=constant", "optim.schedule.warmup_steps=2",
    "evaluation.tokens=256", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=10", "checkpoint.keep_last=9",
    "checkpoint.snapshot_interval_steps=5",
    "recover.probation_steps=3", "recover.margin_steps=2", "recover.skip_steps=6",
    "recover.max_skipped_share=0.9", "monitor.gauge_interval_steps=0",
)  # fmt: skip
SKIP_AT_ONCE = 'recover.ladder.non_finite=[["rollback", "skip"]]'
LOWER_AT_ONCE = 'recover.ladder.non_finite=[["rollback", "lower-lr", "reset-optimizer"]]'
POISONED_DRAWS = range(92, 108)  # steps 24 to 27, at four blocks a step


class Killed(BaseException):
    """What SIGKILL would do: nothing of the run's own ending is reached."""


@pytest.fixture
def poison(poison_draws: Callable[[Collection[int]], None]) -> None:
    poison_draws(POISONED_DRAWS)


def kill_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    honest = getattr(owner, name)

    def killed(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, honest)
        raise Killed

    monkeypatch.setattr(owner, name, killed)


@pytest.mark.usefixtures("poison")
def test_bad_data_is_seen_gone_back_behind_and_passed_over(room) -> None:
    assert room.train(40, SKIP_AT_ONCE) is ExitCode.FINISHED, room.said
    (decision,) = room.recoveries()
    assert decision.who == "policy"
    assert decision.data["cause"] == "non-finite"
    assert decision.data["actions"] == ["rollback", "skip"]
    to, skip = decision.data["rollback"]["to"], decision.data["skip"]
    assert to in (10, 15, 20)
    assert skip["begin"] <= POISONED_DRAWS[0]
    assert skip["end"] > POISONED_DRAWS[-1]
    steps = room.of(StepRecord)
    masked = [record.step for record in steps if record.masked]
    assert 2 <= len(masked) <= 4, "and never again after the rollback"
    assert masked[0] == 24
    again = [record for record in steps if record.segment == "1.01"]
    assert [record.step for record in again] == list(range(to + 1, 41))
    assert not any(record.draw in POISONED_DRAWS for record in again)
    opened = read_segments(room.folder)[-1]
    assert (opened.step, str(opened.parent)) == (to, "1.00")
    assert opened.reason == decision.reason
    assert decision.reason in room.said
    assert {f.kind for f in room.of(Finding)} == {"non-finite"}
    assert all(f.sentence in room.said for f in room.of(Finding))


@pytest.mark.usefixtures("poison")
def test_the_batch_that_was_masked_first_is_kept_with_its_documents(room) -> None:
    room.train(40, 'recover.mode="report"')
    (told,) = room.events("batch-saved")
    assert told.step == 24, "the masked ones after it are of the same incident"
    assert told.data["path"] == "incidents/step-24/batch-1.00.json"
    batch = json.loads((room.folder.path / told.data["path"]).read_bytes())
    assert (batch["draw"], batch["next_draw"], batch["slots_left_out"]) == (92, 96, 0)
    shown = list(documents_at("drill", room.path, 24, None))
    named = [line.split("  tokens")[0].strip() for line in shown if line.startswith("    ")]
    assert [name for slot in batch["slots"] for name in slot["documents"]] == named
    dataset = text_of(room.folder)
    for slot in batch["slots"]:
        stream = next(s.train for s in dataset.sources if s.name == slot["source"])
        tokens = stream.gather(np.array([slot["begin"]]), 33)[0]
        assert slot["tokens"] == " ".join(map(str, tokens))
    assert told.data["path"] in room.said


@pytest.mark.usefixtures("poison")
def test_a_batch_that_cannot_be_kept_fails_nothing(room, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saved_batch, "write_bytes", full)
    assert room.train(40, SKIP_AT_ONCE) is ExitCode.FINISHED
    assert "the batch of step 24 could not be saved" in room.said
    assert not room.events("batch-saved")


@pytest.mark.usefixtures("poison")
def test_what_is_kept_of_batches_is_bounded(room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_batch, "_MOST_TOKENS", 70)
    room.train(40, SKIP_AT_ONCE)
    (told,) = room.events("batch-saved")
    batch = json.loads((room.folder.path / told.data["path"]).read_bytes())
    assert (len(batch["slots"]), batch["slots_left_out"]) == (2, 2)
    kept = saved_batch.SavedBatches(room.folder, text_of(room.folder))
    settings, steps = read_run_spec(room.folder).settings(), room.of(StepRecord)
    monkeypatch.setattr(saved_batch, "_MOST_FILES", 2)
    paths = [kept.save(record, settings, LedgerState()) for record in steps[:3]]
    assert [path is not None for path in paths] == [True, False, False]


@pytest.mark.usefixtures("poison")
def test_a_journal_gives_the_findings_again_that_were_told_live(room) -> None:
    room.train(26, SKIP_AT_ONCE)
    room.train(40, SKIP_AT_ONCE)  # the judgement is rebuilt in the middle of the trouble
    settings = read_run_spec(room.folder).settings()
    told = room.of(Finding)
    assert told
    diagnosis = Diagnosis(settings.diagnose, 40)
    again = [f for r in read_journal(room.folder) for f in diagnosis.observe(r)]
    assert [to_line(from_line(to_line(finding))) for finding in again] == list(map(to_line, told))


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("killed_in", [(Trainer, "roll_back"), (Recovery, "open_segment")])
def test_a_decision_holds_although_the_process_died_before_carrying_it_out(
    room, monkeypatch: pytest.MonkeyPatch, killed_in: tuple[type, str]
) -> None:
    kill_once(monkeypatch, *killed_in)
    limits = (LOWER_AT_ONCE, "recover.margin_steps=6", "recover.diagnose=false")
    with pytest.raises(Killed):
        room.train(40, *limits)
    (decision,) = room.recoveries()
    before, _ = load_ledger(room.folder)
    assert decision.data["poison"], "the checkpoint of step 20 lies beyond the target"
    steps_before = len(room.of(StepRecord))
    assert room.train(40, *limits) is ExitCode.FINISHED, room.said
    resumed = room.events("attempt-started")[-1]
    assert resumed.data["resumed_from"] <= decision.data["rollback"]["to"]
    assert resumed.data["live"]["matrix.lr"] < 1e-3, "lowered, and warmed up again"
    first = room.of(StepRecord)[steps_before]
    assert first.warmup
    (reset,) = room.events("state-reset")
    assert reset.data["what"] == ["optimizer"]
    after, _ = load_ledger(room.folder)
    assert after.recoveries[: len(before.recoveries)] == before.recoveries
    assert room.events("settings-differ")[-1].data["difference"]["optim.lr"] == [2e-3, 1e-3]


@pytest.mark.usefixtures("poison")
def test_what_cannot_be_written_is_not_done_and_tried_again(
    room, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, refused = journal_module.Journal.append_durably, []

    def full(self: Any, record: Any) -> None:
        if isinstance(record, Decision) and record.kind == "recover" and len(refused) < 2:
            refused.append(record)
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(self, record)

    monkeypatch.setattr(journal_module.Journal, "append_durably", full)
    assert room.train(40, SKIP_AT_ONCE) is ExitCode.FINISHED, room.said
    (decision,) = room.recoveries()
    assert decision.step >= refused[-1].step
    assert room.said.count("was not applied") == 2


@pytest.mark.usefixtures("poison")
def test_a_policy_at_its_end_stops_for_a_person(room) -> None:
    with pytest.raises(NeedsPerson, match="stopped for a person to look") as told:
        room.train(40, SKIP_AT_ONCE, "recover.max_recoveries=0")
    assert told.value.exit_code == ExitCode.NEEDS_PERSON
    assert "stopped" in room.events("attempt-ended")[-1].data["reason"]


@pytest.mark.usefixtures("poison")
def test_a_policy_that_may_only_report_changes_nothing(room) -> None:
    assert room.train(40, SKIP_AT_ONCE, 'recover.mode="report"') is ExitCode.FINISHED
    assert {tuple(d.data["actions"]) for d in room.recoveries()} == {("report",)}
    assert len(read_segments(room.folder)) == 1
    assert [r.step for r in room.of(StepRecord)] == list(range(1, 41))


@pytest.mark.usefixtures("poison")
def test_a_fallback_is_forked_to_when_the_ladder_is_spent(room) -> None:
    plan_b = 'fallback=[{name="calm", set={optim={lr=1e-4}}, reset=["optimizer"]}]'
    with pytest.raises(NeedsPerson, match="no fallback is left"):
        room.train(40, SKIP_AT_ONCE, "recover.max_recoveries=0", plan_b)
    decision, stop = room.recoveries()
    assert stop.data["actions"] == ["stop"]
    assert decision.data["fallback"] == "calm"
    opened = read_segments(room.folder)[-1]
    assert str(opened.number) == "2.00"
    assert opened.difference == {"optim.lr": (2e-3, 1e-4)}


def test_checkpoints_become_good_after_their_probation(room, saves_in_step) -> None:
    room.train(40)
    ledger, _ = load_ledger(room.folder)
    healths = {step: known.health for step, known in ledger.checkpoint_health.items()}
    assert healths == {10: "good", 20: "good", 30: "good", 40: "verified"}
