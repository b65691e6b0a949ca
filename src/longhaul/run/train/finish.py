"""How an attempt ends: with a trained model, or in a state to go on from."""

from typing import Any

from longhaul.core.clocks import goodput, time_spent
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.events import EventKind
from longhaul.core.output import time_rows
from longhaul.core.records import Event
from longhaul.core.units import loss_in_words, short_count, short_seconds
from longhaul.logbook.reading import read_journal
from longhaul.run.train.attempt import Attempt
from longhaul.run.train.loop import TrainingLoop


def finish(attempt: Attempt, loop: TrainingLoop) -> ExitCode:
    """Save, evaluate on the whole split, write a sample, and say where the time went."""
    trainer, run_log, view = loop.trainer, attempt.run_log, attempt.view
    _save(loop)
    loss: dict[str, Any] = {}
    for record in trainer.evaluate(None):
        loop.keep([record])
        if isinstance(record, Event) and record.kind == EventKind.EVALUATION:
            loss = dict(record.data)
    sample: dict[str, Any] = {}
    for record in trainer.sample():
        loop.keep([record])
        if isinstance(record, Event) and record.kind == EventKind.SAMPLE:
            sample = dict(record.data)
    text = sample.get("text", "")
    if "message" in sample:
        view.say(f"WARNING: no sample: {sample['message']}")
    position, limit = trainer.position, ""
    if loop.out_of_time and not trainer.finished:
        limit = f" at its time limit (step {position.step} of {trainer.settings.total_steps()})"
    run_log.emit(
        EventKind.FINISHED,
        position.step,
        loss=loss.get("loss"),
        bits_per_byte=loss.get("bits_per_byte"),
        tokens=position.tokens,
        sample=text,
        out_of_time=bool(limit),
        max_hours=trainer.settings.train.max_hours,
    )
    run_log.emit(EventKind.ATTEMPT_ENDED, position.step, reason=f"finished{limit}")
    loop.checkpoint_manager.refuse_if_gone(after_s=0.0)  # an end that is written nowhere is none
    if text:
        view.say(f"\nsample, from the prompt {trainer.settings.sample.prompt!r}:\n{text}\n")
    spent = time_spent(read_journal(run_log.folder))
    view.table("where the time went", ("", "seconds", "share"), time_rows(spent))
    view.say(f"goodput {goodput(spent):.1%} of {short_seconds(sum(spent.values()))}, all attempts")
    view.say(
        f"finished{limit}: {position.step:,} steps, {short_count(position.tokens)} tokens, "
        f"validation loss {loss_in_words(loss['loss'], loss['bits_per_byte'])}\n"
        f"run: {run_log.folder.path}"
    )
    return ExitCode.FINISHED


def end_unfinished(attempt: Attempt, loop: TrainingLoop) -> ExitCode:
    """Save, so that nothing is lost, and say how to go on."""
    code, reason = loop.how_it_stopped()
    _save(loop)
    step = loop.trainer.position.step
    attempt.run_log.emit(EventKind.ATTEMPT_ENDED, step, reason=reason)
    loop.checkpoint_manager.refuse_if_gone(after_s=0.0)
    attempt.view.say(
        f"{reason}: saved at step {step}\n"
        f"  → `longhaul train {attempt.run_log.folder.path}` goes on from there"
    )
    return code


def _save(loop: TrainingLoop) -> None:
    """Make sure that where training stands is on disk, else NeedsPerson: it has not ended then."""
    trainer, checkpoints = loop.trainer, loop.checkpoint_manager
    step = trainer.position.step
    checkpoints.refuse_if_gone(after_s=0.0)
    loop.keep(trainer.saved(wait=True))
    if checkpoints.saved_step != step:
        loop.keep(trainer.save())
        loop.keep(trainer.saved(wait=True))
    if (saved := checkpoints.saved_step) != step:
        why = f": {checkpoints.failed_of}" if checkpoints.failed_of else ""
        raise NeedsPerson(
            f"training reached step {step}, but its checkpoint could not be saved in "
            f"{checkpoints.folder}{why}",
            "mend that, or free space there, and start the same command again; "
            + (f"it goes on from step {saved}" if saved else "it starts from step 0"),
        )
    checkpoints.prune()
