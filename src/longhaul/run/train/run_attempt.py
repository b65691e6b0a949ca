"""One attempt, from prepared text to an exit code: build, restore, announce, train, end."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from longhaul.checkpoint.restore import restore_newest, set_unknown_aside
from longhaul.checkpoint.shared_memory_snapshot import Origin, newest_saved, restore_survivor
from longhaul.config.load import recipe_from_values, value_at, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.events import EventKind
from longhaul.core.machine import differences, fingerprint
from longhaul.core.records import StepRecord
from longhaul.core.signals import StopRequest
from longhaul.data.dataset import Dataset
from longhaul.logbook.ledger import LedgerState
from longhaul.logbook.run_history import is_fork
from longhaul.logbook.run_spec import changed_settings
from longhaul.logbook.segments import read_segments
from longhaul.model.code_cache import forget_old_code
from longhaul.model.compiling import refuse_without_compiler
from longhaul.parallel.control import RankLost, naming_the_lost_rank
from longhaul.parallel.device import own_device, settle_torch, threads_before, torch_facts
from longhaul.parallel.layout import Place, find_place
from longhaul.parallel.rendezvous import Briefing, lead
from longhaul.parallel.world import part
from longhaul.run.train.attempt import Attempt
from longhaul.run.train.build import (
    begin_with_given,
    build_parts,
    hardware,
    keep_generated_code,
    saver_of,
    say_what_was_built,
)
from longhaul.run.train.finish import end_unfinished, finish
from longhaul.run.train.loop import TrainingLoop
from longhaul.run.train.mixture import settle_mixture
from longhaul.train.compile_choice import has_graphs, settle_compile, with_compile_choice
from longhaul.train.coordinator import Coordinator, RankZero
from longhaul.train.effective import parts_for
from longhaul.train.memory import settle_micro_batch
from longhaul.train.orders import Accuse, End
from longhaul.train.out_of_memory import MemoryGuard
from longhaul.train.parts import Identity, Parts
from longhaul.train.precision import settle_precision
from longhaul.train.rank_comparison import SilentCorruption
from longhaul.train.state import Progress
from longhaul.train.trainer import Trainer

_MOST_DIFFERENCES_SAID = 8


def run_attempt(attempt: Attempt, dataset: Dataset, stop_request: StopRequest) -> ExitCode:
    """Train from where the run stands until it must stop; RankLost if another rank has gone."""
    place = find_place(os.environ)
    with naming_the_lost_rank(place.rank, place.size, "training") if place else nullcontext():
        return _run(attempt, dataset, stop_request, place)


def _run(
    attempt: Attempt, dataset: Dataset, stop_request: StopRequest, place: Place | None
) -> ExitCode:
    run_log, say, recipe = attempt.run_log, attempt.view.say, attempt.recipe
    elastic = recipe.parallel.elastic
    processes = place.local_size if place else recipe.machine.processes if elastic else 1
    threads = threads_before(recipe, run_log.history.last_segment, place.size if place else 1)
    settle_torch(recipe, processes, threads)
    device = own_device(recipe.machine.device, place)
    recipe = with_compile_choice(recipe, run_log, place is None and has_graphs(device))
    refuse_without_compiler(recipe, device)
    recipe = settle_precision(recipe, run_log, device, say)
    attempt = replace(attempt, recipe=recipe)
    settle_torch(recipe, processes, threads)  # TF32 may have been chosen
    ranks = None
    if place is not None:
        path, number = run_log.folder.path.resolve(), run_log.lease.attempt
        ranks = lead(place, Briefing(str(path), recipe, number, run_log.ledger, threads))
        device = ranks.device
    saver, ledger = saver_of(attempt, ranks), run_log.history.ledger
    _keep_code(attempt, device, recipe)
    parts = build_parts(recipe, ledger, dataset, device, saver, run_log.time, ranks)
    say_what_was_built(parts, recipe, attempt.view)
    origin = _restore(attempt, parts)
    weights = {} if origin.step is not None else _begin(attempt, parts)
    prints = fingerprint(torch_facts(device)) | {"data": {"identity": dataset.identity}}
    if ranks is not None:
        prints["ranks"] = {"size": ranks.size, **asdict(ranks.layout)}
    trainer: Trainer | None = None
    guard = MemoryGuard(
        parts, recipe, run_log.folder, partial(run_log.emit_durably, EventKind.OUT_OF_MEMORY)
    )
    try:
        settle_micro_batch(recipe, run_log, parts, say)
        settle_compile(recipe, run_log, parts, say, partial(_keep_code, attempt, device))
        missed: Sequence[StepRecord] = ()
        if elastic:
            from longhaul.run.train.elastic import join_as_leader

            origin, missed = join_as_leader(attempt, parts, origin)
        trainer = _announce(attempt, parts, origin, prints, stop_request, weights)
        saved = newest_saved(origin, run_log.folder)
        loop = TrainingLoop(attempt, trainer, stop_request, prints, dataset, saved)
        attempt.view.begin(trainer.position.step, trainer.settings.total_steps())
        segment = trainer.identity.segment
        loop.keep(replace(record, segment=segment) for record in missed)
        loop.run()
        attempt.view.end()
        done = trainer.finished or loop.out_of_time
        code = finish(attempt, loop) if done else end_unfinished(attempt, loop)
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


def _keep_code(attempt: Attempt, device: torch.device, recipe: Recipe) -> None:
    if kept := keep_generated_code(attempt.run_log.folder, recipe, device):
        attempt.view.say(kept)
        forget_old_code(attempt.run_log.folder.compiled)


def _restore(attempt: Attempt, parts: Parts) -> Origin:
    """Go on from memory that outlived the workers before, or else from the disk."""
    run_log, say = attempt.run_log, attempt.view.say
    control = parts.ranks.control if parts.ranks else None
    fill = partial(parts_for, parts.step, parts.progress)
    set_unknown_aside(run_log, say)
    survived = restore_survivor(run_log, parts.snapshots, fill, say, control)
    if survived is not None:
        return Origin(survived, "memory")
    return Origin(restore_newest(run_log, fill, say, control, attempt.tiers), "disk")


def _begin(attempt: Attempt, parts: Parts) -> dict[str, str]:
    """Begin with the weights that the recipe names; what they are, or nothing where it names none.
    NeedsPerson if the run began with others.
    """
    if attempt.recipe.init.from_ is None:
        return {}
    from longhaul.interop.hf.given import identity_of, refuse_others

    weights = identity_of(attempt.recipe)
    for opening in read_segments(attempt.run_log.folder)[:1]:
        refuse_others(weights, opening.weights)
    begin_with_given(parts, attempt.recipe)
    attempt.view.say(f"weights: those of {weights['folder']} ({weights['family']})")
    return weights


def _end_others(trainer: Trainer | None, code: ExitCode) -> None:
    if trainer is not None and trainer.coordinator.at_boundary:
        trainer.coordinator.order(End(int(code)))


def _announce(
    attempt: Attempt,
    parts: Parts,
    origin: Origin,
    prints: Mapping[str, Any],
    stop_request: StopRequest,
    weights: Mapping[str, str],
) -> Trainer:
    run_log, history, position = attempt.run_log, attempt.run_log.history, parts.progress.position
    # A start may have decided something already.
    overrides = run_log.ledger.overrides_at(position.step)
    effective = with_overrides(attempt.recipe, overrides)
    ledger = run_log.decide_restart(effective, prints, position.step)
    _say_what_differs(attempt, effective, parts.progress, prints)
    _say_what_stays_undone(attempt, ledger, position.step)
    ledger = settle_mixture(attempt, parts, effective)
    reason = "start"
    if history.begun:
        decided = f"{history.unopened.reason}; " if history.unopened else ""
        how = history.ended or "the last attempt left no word"
        reason = f"{decided}restart from {origin} ({how})"
    run_log.open_segment(
        reason,
        effective,
        step=position.step,
        draw=position.draw,
        checkpoint=origin.checkpoint,
        fingerprint=prints,
        fork=history.unopened is not None and is_fork(history.unopened.data),
        weights=weights,
    )
    attempt.view.say(f"segment {run_log.segment_name}: {reason}")
    identity = Identity(run_log.lease.attempt, run_log.segment_name, history.steps_made)
    place = None
    if attempt.recipe.parallel.elastic:
        from longhaul.run.train.elastic import place_of

        place = place_of(parts)
    coordinator = Coordinator(place)
    if parts.ranks is not None:
        parts.ranks.control.share((ledger, identity))
        coordinator = RankZero(parts, stop_request, place)
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
        hardware=hardware(parts, effective),
    )
    return trainer


def _say_what_differs(
    attempt: Attempt, effective: Recipe, progress: Progress, prints: Mapping[str, Any]
) -> None:
    run_log, say, step = attempt.run_log, attempt.view.say, progress.position.step
    last = run_log.history.last_segment
    if progress.settings_of_checkpoint is not None:
        before = recipe_from_values(progress.settings_of_checkpoint)
        if changed := changed_settings(before, effective):
            say(f"settings differ from the checkpoint's: {_said(changed)}")
            run_log.emit(EventKind.SETTINGS_DIFFER, step, difference=changed)
    if last is not None and (changed := differences(last.fingerprint, prints)):
        number = str(last.number)
        say(f"machine or software differ from segment {number}: {_said(changed)}")
        run_log.emit(EventKind.MACHINE_DIFFERS, step, segment_before=number, difference=changed)


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
                f"(`longhaul set {attempt.run_log.folder.name} {path}={wanted} --force` insists)"
            )


def _said(changed: Mapping[str, tuple[Any, Any]]) -> str:
    items = [f"{path} {old!r} → {new!r}" for path, (old, new) in changed.items()]
    left = len(items) - _MOST_DIFFERENCES_SAID
    more = f"; and {left} more (`longhaul diff`)" if left > 0 else ""
    return "; ".join(items[:_MOST_DIFFERENCES_SAID]) + more
