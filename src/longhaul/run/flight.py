"""From prepared text to the end of an attempt: build, restore, announce, fly, end.

Enters: an attempt and its text. Leaves: an exit code, and everything else in the logbook.
Never knows: how the lease was had or the text prepared (`worker.py`).
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from longhaul.config.load import recipe_from_values, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.fingerprint import differences, fingerprint
from longhaul.core.records import Record
from longhaul.data.dataset import Dataset
from longhaul.logbook.reading import read_journal, read_last
from longhaul.parallel.control import RankLost, telling_who_is_lost
from longhaul.parallel.place import Place, find_place
from longhaul.parallel.world import part
from longhaul.recover.judgement import Judgement
from longhaul.run.asked import changed_settings
from longhaul.run.attempt import Attempt
from longhaul.run.build import build_parts, site_of
from longhaul.run.crew import Briefing, lead, wishes_of
from longhaul.run.desk import Desk
from longhaul.run.device import choose_device, settle_torch, torch_facts
from longhaul.run.ending import end_unfinished, finish
from longhaul.run.keeper import Keeper
from longhaul.run.micro_batch import settle_micro_batch
from longhaul.run.past import Past, is_fork
from longhaul.run.pilot import Pilot
from longhaul.run.recovery import Recovery
from longhaul.run.restore import restore_newest
from longhaul.run.save_interval import SaveInterval
from longhaul.run.saved_batch import SavedBatches
from longhaul.run.signals import StopWish
from longhaul.train.leading import LeadingTrainer
from longhaul.train.parts import Identity, Parts
from longhaul.train.renew import parts_for
from longhaul.train.state import Progress
from longhaul.train.trainer import Trainer

_MOST_DIFFERENCES_SAID = 8


def fly(attempt: Attempt, dataset: Dataset, wish: StopWish) -> ExitCode:
    """Train from where the run stands to its end, or to where it has to stop.

    Raises:
        RankLost: another rank has gone.
    """
    place = find_place(os.environ)
    if place is None:
        return _fly(attempt, dataset, wish, None)
    with telling_who_is_lost(place.rank, place.size, "training"):
        return _fly(attempt, dataset, wish, place)


def _fly(attempt: Attempt, dataset: Dataset, wish: StopWish, place: Place | None) -> ExitCode:
    ranks = None if place is None else lead(place, briefing_of(attempt))
    device = ranks.world.device if ranks else choose_device(attempt.recipe.machine.device)
    settle_torch(attempt.recipe, place.local_size if place else 1)
    parts = build_parts(site_of(attempt, ranks), dataset, device)
    restored = restore_newest(
        attempt.book,
        partial(parts_for, parts.step, parts.progress),
        attempt.view.say,
        ranks.control if ranks else None,
        attempt.tiers,
    )
    prints = fingerprint(torch_facts(device)) | {"data": {"identity": dataset.identity}}
    if ranks is not None:
        prints["ranks"] = {"size": ranks.world.size, **asdict(ranks.world.layout)}
    trainer: Trainer | None = None
    try:
        settle_micro_batch(attempt, parts)
        trainer = _announce(attempt, parts, restored, prints, wish)
        pilot = _pilot(attempt, trainer, wish, prints, dataset, restored)
        attempt.view.begin(trainer.position.step, trainer.settings.total_steps())
        pilot.fly()
        attempt.view.end()
        done = trainer.finished or pilot.out_of_time
        code = finish(attempt, pilot, dataset) if done else end_unfinished(attempt, pilot)
        _end_others(trainer, code)
        if done:
            pilot.keeper.settle(lambda: wish.exit_code is not None)
        return code
    except RankLost:
        raise
    except LonghaulError as error:
        _end_others(trainer, error.exit_code)
        raise
    finally:
        attempt.view.end()
        parts.batches.close()
        parts.saver.close()
        if ranks is not None:
            part()


def _end_others(trainer: Trainer | None, code: ExitCode) -> None:
    if isinstance(trainer, LeadingTrainer) and trainer.at_border:
        trainer.end(int(code))


def briefing_of(attempt: Attempt) -> Briefing:
    """What the other ranks are told of an attempt."""
    folder = str(attempt.folder.path.resolve())
    ledger = attempt.book.ledger.state
    return Briefing(folder, attempt.recipe, attempt.book.lease.attempt, ledger)


def _pilot(
    attempt: Attempt,
    trainer: Trainer,
    wish: StopWish,
    prints: Mapping[str, Any],
    dataset: Dataset,
    restored: int | None,
) -> Pilot:
    book, clock, say = attempt.book, attempt.clock, attempt.view.say
    recovery = Recovery(book, prints, clock, say)
    past: list[Record] = []
    if attempt.past.begun:
        past = read_last(attempt.folder, Judgement.records_needed(trainer.settings))
    judgement = Judgement(trainer.settings, past, attempt.past.course)
    done = attempt.past.done_requests
    desk = Desk(book, recovery, done, clock, say, judgement.seconds_per_step)
    devices = 1 if trainer.ranks is None else trainer.ranks.world.size
    interval = SaveInterval(partial(_before, attempt), devices, clock)
    batches = SavedBatches(attempt.folder, dataset)
    keeper = Keeper(attempt, trainer, recovery, interval, restored)
    return Pilot(attempt, trainer, judgement, recovery, desk, wish, keeper, batches)


def _before(attempt: Attempt) -> Iterator[Record]:
    """The events of earlier attempts."""
    for record in read_journal(attempt.folder, steps=False):
        if record.attempt < attempt.book.lease.attempt:
            yield record


def _announce(
    attempt: Attempt,
    parts: Parts,
    restored: int | None,
    prints: Mapping[str, Any],
    wish: StopWish,
) -> Trainer:
    """Open a segment, say what differs from before, and make the trainer."""
    book, past, position = attempt.book, attempt.past, parts.progress.position
    ledger = book.ledger.state  # a start may have decided something already
    effective = with_overrides(attempt.recipe, ledger.overrides_at(position.step))
    _say_what_differs(attempt, effective, parts.progress, prints)
    reason = _reason(past, restored)
    book.open_segment(
        reason,
        effective,
        step=position.step,
        draw=position.draw,
        checkpoint=restored,
        fingerprint=prints,
        fork=past.unopened is not None and is_fork(past.unopened.data),
    )
    attempt.view.say(f"segment {book.segment_name}: {reason}")
    identity = Identity(book.lease.attempt, book.segment_name, past.steps_made)
    if parts.ranks is None:
        trainer = Trainer(attempt.recipe, ledger, parts, identity)
    else:
        parts.ranks.control.share((ledger, identity))
        trainer = LeadingTrainer(
            attempt.recipe, ledger, parts, identity, parts.ranks, wishes_of(wish)
        )
    book.tell(
        "attempt-started",
        position.step,
        reason=reason,
        pid=os.getpid(),
        host=prints["machine"]["host"],
        resumed_from=restored,
        steps_made=past.steps_made,
        total_steps=effective.total_steps(),
        live=trainer.live_settings(),
    )
    return trainer


def _reason(past: Past, restored: int | None) -> str:
    if not past.begun:
        return "start"
    how = past.ended or "the last attempt left no word"
    where = f"step {restored}" if restored is not None else "the beginning, there is no checkpoint"
    decided = f"{past.unopened.reason}; " if past.unopened else ""
    return f"{decided}restart from {where} ({how})"


def _say_what_differs(
    attempt: Attempt, effective: Recipe, progress: Progress, prints: Mapping[str, Any]
) -> None:
    """Differences are said and recorded before the first step (DESIGN rule 1, incident N12)."""
    last = attempt.past.last_segment
    if progress.settings_of_checkpoint is not None:
        before = recipe_from_values(progress.settings_of_checkpoint)
        if changed := changed_settings(before, effective):
            attempt.view.say(f"settings differ from the checkpoint's: {_said(changed)}")
            attempt.book.tell("settings-differ", progress.position.step, difference=changed)
    if last is not None and (changed := differences(last.fingerprint, prints)):
        attempt.view.say(f"machine or software differ from segment {last.number}: {_said(changed)}")
        attempt.book.tell(
            "machine-differs",
            progress.position.step,
            segment_before=str(last.number),
            difference=changed,
        )


def _said(changed: Mapping[str, tuple[Any, Any]]) -> str:
    items = [f"{path} {old!r} → {new!r}" for path, (old, new) in changed.items()]
    left = len(items) - _MOST_DIFFERENCES_SAID
    more = f"; and {left} more (`longhaul diff`)" if left > 0 else ""
    return "; ".join(items[:_MOST_DIFFERENCES_SAID]) + more
