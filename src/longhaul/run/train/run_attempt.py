"""One attempt, from prepared text to an exit code: build, restore, announce, train, end."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from longhaul.config.load import recipe_from_values, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.events import EventKind
from longhaul.core.machine import differences, fingerprint
from longhaul.core.records import Record, StepRecord
from longhaul.core.signals import StopRequest
from longhaul.data.dataset import Dataset
from longhaul.logbook.ledger import LedgerState
from longhaul.logbook.reading import read_journal, read_last
from longhaul.logbook.run_spec import changed_settings
from longhaul.model.compiling import refuse_without_compiler
from longhaul.parallel.control import RankLost, naming_the_lost_rank
from longhaul.parallel.device import own_device, settle_torch, threads_before, torch_facts
from longhaul.parallel.layout import Place, find_place
from longhaul.parallel.world import part
from longhaul.recover.health_monitor import HealthMonitor
from longhaul.run.diagnose.saved_batch import SavedBatches
from longhaul.run.train.attempt import Attempt
from longhaul.run.train.build import build_parts, site_of
from longhaul.run.train.checkpoint_manager import CheckpointManager
from longhaul.run.train.finish import end_unfinished, finish
from longhaul.run.train.loop import TrainingLoop
from longhaul.run.train.micro_batch import settle_micro_batch
from longhaul.run.train.out_of_memory import MemoryGuard
from longhaul.run.train.precision import settle_precision
from longhaul.run.train.rank_health import RankHealth
from longhaul.run.train.rendezvous import Briefing, lead, stop_requests_of
from longhaul.run.train.request_handler import RequestHandler, value_at
from longhaul.run.train.restarted import decide_restart
from longhaul.run.train.restore import restore_newest, set_unknown_aside
from longhaul.run.train.rollback import Recovery
from longhaul.run.train.run_history import RunHistory, is_fork
from longhaul.run.train.shared_memory_snapshot import Origin, newest_saved, restore_survivor
from longhaul.store.save_interval import SaveInterval
from longhaul.train.coordinator import Coordinator, RankZero
from longhaul.train.effective import parts_for
from longhaul.train.orders import Accuse, End
from longhaul.train.parts import Identity, Parts
from longhaul.train.rank_comparison import SilentCorruption
from longhaul.train.state import Progress
from longhaul.train.trainer import Trainer

_MOST_DIFFERENCES_SAID = 8


def run_attempt(attempt: Attempt, dataset: Dataset, stop_request: StopRequest) -> ExitCode:
    """Train from where the run stands to its end, or to where it has to stop.

    Raises:
        RankLost: another rank has gone.
    """
    place = find_place(os.environ)
    if place is None:
        return _run(attempt, dataset, stop_request, None)
    with naming_the_lost_rank(place.rank, place.size, "training"):
        return _run(attempt, dataset, stop_request, place)


def _run(
    attempt: Attempt, dataset: Dataset, stop_request: StopRequest, place: Place | None
) -> ExitCode:
    elastic = attempt.recipe.parallel.elastic
    alone = attempt.recipe.machine.processes if elastic else 1
    processes = place.local_size if place else alone
    size = place.size if place else 1
    threads = threads_before(attempt.recipe, attempt.history.last_segment, size)
    settle_torch(attempt.recipe, processes, threads)
    device = own_device(attempt.recipe.machine.device, place)
    refuse_without_compiler(attempt.recipe, device)
    attempt = replace(attempt, recipe=settle_precision(attempt, device))
    settle_torch(attempt.recipe, processes, threads)  # TF32 may have been chosen
    ranks = None if place is None else lead(place, briefing_of(attempt, threads))
    device = ranks.world.device if ranks else device
    parts = build_parts(site_of(attempt, ranks), dataset, device)
    origin = _restore(attempt, parts)
    prints = fingerprint(torch_facts(device)) | {"data": {"identity": dataset.identity}}
    if ranks is not None:
        prints["ranks"] = {"size": ranks.world.size, **asdict(ranks.world.layout)}
    trainer: Trainer | None = None
    guard = MemoryGuard(parts, attempt.recipe, attempt.folder, partial(_ran_out, attempt))
    try:
        settle_micro_batch(attempt, parts)
        missed: Sequence[StepRecord] = ()
        if elastic:
            from longhaul.run.train.elastic import join_as_leader

            origin, missed = join_as_leader(attempt, parts, origin)
        trainer = _announce(attempt, parts, origin, prints, stop_request)
        saved = newest_saved(origin, attempt.folder)
        loop = _loop(attempt, trainer, stop_request, prints, dataset, saved)
        attempt.view.begin(trainer.position.step, trainer.settings.total_steps())
        segment = trainer.identity.segment
        loop.keep(replace(record, segment=segment) for record in missed)
        loop.run()
        attempt.view.end()
        done = trainer.finished or loop.out_of_time
        code = finish(attempt, loop, dataset) if done else end_unfinished(attempt, loop)
        _end_others(trainer, code)
        if done:
            loop.checkpoint_manager.settle(lambda: stop_request.exit_code is not None)
        return code
    except RankLost:
        raise
    except SilentCorruption as error:
        if trainer is not None:
            trainer.coordinator.order(Accuse(error.message))
        raise
    except LonghaulError as error:
        _end_others(trainer, error.exit_code)
        raise
    except (RuntimeError, MemoryError) as error:
        if answer := guard.answer(error, trainer):
            raise answer from error
        raise
    finally:
        attempt.view.end()
        parts.batches.close()
        parts.saver.close(parts.time_buckets.alive)
        if ranks is not None:
            part()


def _restore(attempt: Attempt, parts: Parts) -> Origin:
    """Go on from memory that outlived the workers before, or else from the disk."""
    control = parts.ranks.control if parts.ranks else None
    fill = partial(parts_for, parts.step, parts.progress)
    set_unknown_aside(attempt.run_log, attempt.history.begun, attempt.view.say)
    survived = restore_survivor(attempt, parts.snapshots, fill, control)
    if survived is not None:
        return Origin(survived, "memory")
    say = attempt.view.say
    return Origin(restore_newest(attempt.run_log, fill, say, control, attempt.tiers), "disk")


def _ran_out(attempt: Attempt, step: int, data: Mapping[str, Any]) -> None:
    attempt.run_log.emit_durably(EventKind.OUT_OF_MEMORY, step, **data)


def _end_others(trainer: Trainer | None, code: ExitCode) -> None:
    if trainer is not None and trainer.coordinator.at_boundary:
        trainer.coordinator.order(End(int(code)))


def briefing_of(attempt: Attempt, threads: int | None) -> Briefing:
    """What the other ranks are told of an attempt; `threads` as `settle_torch`."""
    folder = str(attempt.folder.path.resolve())
    ledger = attempt.run_log.ledger.state
    return Briefing(folder, attempt.recipe, attempt.run_log.lease.attempt, ledger, threads)


def _loop(
    attempt: Attempt,
    trainer: Trainer,
    stop_request: StopRequest,
    prints: Mapping[str, Any],
    dataset: Dataset,
    restored: int | None,
) -> TrainingLoop:
    run_log, clock, say = attempt.run_log, attempt.clock, attempt.view.say
    recovery = Recovery(run_log, prints, clock, say, attempt.tiers)
    history: list[Record] = []
    if attempt.history.begun:
        history = read_last(attempt.folder, HealthMonitor.records_needed(trainer.settings))
    health_monitor = HealthMonitor(trainer.settings, history, attempt.history.course)
    done = attempt.history.done_requests
    request_handler = RequestHandler(
        run_log, recovery, done, clock, say, health_monitor.seconds_per_step
    )
    devices = 1 if trainer.ranks is None else trainer.ranks.world.size
    interval = SaveInterval(partial(_before, attempt), devices, clock)
    batches = SavedBatches(attempt.folder, dataset)
    checkpoint_manager = CheckpointManager(attempt, trainer, recovery, interval, restored)
    comparison = trainer.coordinator.comparison
    machines = RankHealth(attempt, trainer, comparison) if comparison else None
    return TrainingLoop(
        attempt,
        trainer,
        health_monitor,
        recovery,
        request_handler,
        stop_request,
        checkpoint_manager,
        batches,
        machines,
    )


def _before(attempt: Attempt) -> Iterator[Record]:
    """The events of earlier attempts."""
    for record in read_journal(attempt.folder, steps=False):
        if record.attempt < attempt.run_log.lease.attempt:
            yield record


def _announce(
    attempt: Attempt,
    parts: Parts,
    origin: Origin,
    prints: Mapping[str, Any],
    stop_request: StopRequest,
) -> Trainer:
    """Open a segment, say what differs from before, and make the trainer."""
    run_log, history, position = attempt.run_log, attempt.history, parts.progress.position
    ledger = run_log.ledger.state  # a start may have decided something already
    effective = with_overrides(attempt.recipe, ledger.overrides_at(position.step))
    ledger = decide_restart(run_log, history.last_segment, effective, prints, position.step)
    _say_what_differs(attempt, effective, parts.progress, prints)
    _say_what_stays_undone(attempt, ledger, position.step)
    reason = _reason(history, origin)
    run_log.open_segment(
        reason,
        effective,
        step=position.step,
        draw=position.draw,
        checkpoint=origin.checkpoint,
        fingerprint=prints,
        fork=history.unopened is not None and is_fork(history.unopened.data),
    )
    attempt.view.say(f"segment {run_log.segment_name}: {reason}")
    identity = Identity(run_log.lease.attempt, run_log.segment_name, history.steps_made)
    if parts.ranks is not None:
        parts.ranks.control.share((ledger, identity))
    coordinator = _coordinator(attempt.recipe, parts, stop_request)
    trainer = Trainer(attempt.recipe, ledger, parts, identity, coordinator)
    run_log.emit(
        EventKind.ATTEMPT_STARTED,
        position.step,
        reason=reason,
        pid=os.getpid(),
        host=prints["machine"]["host"],
        resumed_from=origin.step,
        resumed_in=origin.where,
        steps_made=history.steps_made,
        total_steps=effective.total_steps(),
        live=trainer.live_settings(),
    )
    return trainer


def _coordinator(recipe: Recipe, parts: Parts, stop_request: StopRequest) -> Coordinator:
    """Of the process that keeps the run's log: alone or rank 0; perhaps the leader of replicas."""
    coordinator = (
        Coordinator() if parts.ranks is None else RankZero(parts, stop_requests_of(stop_request))
    )
    if not recipe.parallel.elastic:
        return coordinator
    from longhaul.run.train.elastic import among_replicas

    return among_replicas(parts, coordinator)


def _reason(history: RunHistory, origin: Origin) -> str:
    if not history.begun:
        return "start"
    how = history.ended or "the last attempt left no word"
    where = str(origin)
    decided = f"{history.unopened.reason}; " if history.unopened else ""
    return f"{decided}restart from {where} ({how})"


def _say_what_differs(
    attempt: Attempt, effective: Recipe, progress: Progress, prints: Mapping[str, Any]
) -> None:
    """Differences are said and recorded before the first step (DESIGN rule 1, incident N12)."""
    last = attempt.history.last_segment
    if progress.settings_of_checkpoint is not None:
        before = recipe_from_values(progress.settings_of_checkpoint)
        if changed := changed_settings(before, effective):
            attempt.view.say(f"settings differ from the checkpoint's: {_said(changed)}")
            attempt.run_log.emit(
                EventKind.SETTINGS_DIFFER, progress.position.step, difference=changed
            )
    if last is not None and (changed := differences(last.fingerprint, prints)):
        attempt.view.say(f"machine or software differ from segment {last.number}: {_said(changed)}")
        attempt.run_log.emit(
            EventKind.MACHINE_DIFFERS,
            progress.position.step,
            segment_before=str(last.number),
            difference=changed,
        )


def _say_what_stays_undone(attempt: Attempt, ledger: LedgerState, step: int) -> None:
    """A recipe that asks for what was undone does not bring it back: a start asks for much."""
    asked = attempt.recipe.model_dump(mode="json")
    for path, value in ledger.overrides_at(step).items():
        wanted = value_at(asked, path)
        undone = ledger.undone(path, wanted) if wanted != value else None
        if undone is not None:
            attempt.view.say(
                f"{path}: the recipe asks for {wanted}, which was undone at step "
                f"{undone.step:,} because of {undone.cause}; {value} holds "
                f"(`longhaul set {attempt.folder.name} {path}={wanted} --force` insists)"
            )


def _said(changed: Mapping[str, tuple[Any, Any]]) -> str:
    items = [f"{path} {old!r} → {new!r}" for path, (old, new) in changed.items()]
    left = len(items) - _MOST_DIFFERENCES_SAID
    more = f"; and {left} more (`longhaul diff`)" if left > 0 else ""
    return "; ".join(items[:_MOST_DIFFERENCES_SAID]) + more
