"""Replicas of a run: how its leader joins the others, and what every other one does."""

import os
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import torch

from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.shared_memory_snapshot import Origin
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import RealClock, TimeBuckets
from longhaul.core.errors import ExitCode, RecipeError
from longhaul.core.events import EventKind
from longhaul.core.records import StepRecord
from longhaul.core.signals import leaving_at_once
from longhaul.data.verification import text_for_training
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.run_spec import read_run_spec
from longhaul.logbook.segments import read_segments
from longhaul.model.compiling import refuse_without_compiler
from longhaul.model.device import claim, queues
from longhaul.parallel.device import choose_device, own_device, settle_torch, threads_before
from longhaul.parallel.layout import find_place
from longhaul.parallel.rendezvous import form_ranks
from longhaul.parallel.world import meet, part
from longhaul.run.train.attempt import Attempt
from longhaul.run.train.build import begin_with_given, build_parts
from longhaul.supervise.history import write_peer_recovery
from longhaul.supervise.pipes import hold_on
from longhaul.supervise.ranks.progress import ProgressFile, progress_path
from longhaul.supervise.replicas import LIGHTHOUSE, REPLICA, leader_is_there
from longhaul.train.coordinator import Coordinator
from longhaul.train.elastic import ElasticStep, Outrun, Place
from longhaul.train.parts import Identity, Parts
from longhaul.train.precision import with_formats
from longhaul.train.trainer import Trainer

_LOOK_EVERY_S = 0.1


def join_as_leader(
    attempt: Attempt, parts: Parts, origin: Origin
) -> tuple[Origin, list[StepRecord]]:
    """Take the leader's place among the replicas, if this process is one: where this attempt goes
    on from, and the records of steps that the others have made and that the journal lacks.
    """
    if REPLICA not in os.environ:
        return origin, []
    place = take_place(parts, 0, attempt.recipe)
    healed = place.join()
    leader_is_there(attempt.run_log.folder).touch()
    if not healed:
        return origin, []
    step, since = parts.progress.position.step, attempt.run_log.history.steps_made
    missed = place.missed(since)
    text = f"the others have come to step {step} meanwhile: replica {place.peer} gave its state"
    if len(missed) < step - since:
        text += f", and the records of {step - since - len(missed)} steps are lost"
    attempt.view.say(text)
    attempt.run_log.emit(EventKind.HEALED, step, restored=origin.step, peer=place.peer, text=text)
    number = attempt.run_log.lease.attempt
    return Origin(step, "replica"), [replace(record, attempt=number) for record in missed]


def place_of(parts: Parts) -> Place | None:
    """The place that was taken among replicas; None if this process has joined no others."""
    return parts.step.place if isinstance(parts.step, ElasticStep) else None


def follow_leader(folder: RunFolder) -> ExitCode:
    """Make steps with the leader until the run is finished; Apart if replicas could not agree."""
    replica, clock, within = int(os.environ[REPLICA]), RealClock(), find_place(os.environ)
    asked = read_run_spec(folder)
    recipe = asked.settings()
    number = replica if within is None else replica * within.size + within.rank
    with ExitStack() as leaving:
        progress = leaving.enter_context(closing(ProgressFile(progress_path(folder, number))))
        time_buckets = TimeBuckets(clock, watcher=progress.track)
        leaving.enter_context(leaving_at_once())
        hold_on(os.environ, recipe.supervise.grace_s, folder.workers / f"{number}.log")
        last = next(reversed(read_segments(folder)), None)
        threads = threads_before(recipe, last, within.size if within else 1)
        settle_torch(recipe, recipe.machine.processes, threads)
        refuse_without_compiler(recipe, choose_device(recipe.machine.device))
        while not leader_is_there(folder).exists():
            time.sleep(_LOOK_EVERY_S)
        dataset = text_for_training(folder, asked, lambda _: None)
        ranks = None
        if within is not None:
            leaving.callback(part)
            own = partial(own_device, place=within)
            control = meet(within, wanted=recipe.machine.device, own=own)
            ranks = form_ranks(within, control, recipe)
        ledger = load_ledger(folder)[0]
        recipe = with_formats(recipe, ledger)
        saver = Saver(
            folder.checkpoints, attempt=0, still_owner=lambda: False, clock=clock,
            control=ranks.saving if ranks else None, settled=True,
        )  # fmt: skip
        device = ranks.device if ranks else _device(number, recipe.machine.device)
        parts = build_parts(recipe, ledger, dataset, device, saver, time_buckets, ranks)
        leaving.callback(parts.saver.close)
        leaving.callback(parts.batches.close)
        begin_with_given(parts, recipe)  # unless another replica is further, whose state is taken
        place = take_place(parts, replica, recipe)
        leaving.callback(place.close)
        place.join()
        if place.peer is not None:
            write_peer_recovery(folder, replica, place.peer, parts.progress.position.step)
        while True:
            identity = Identity(attempt=0, segment="", done_before=0)
            companion = Coordinator(place, keeps_run=False)
            trainer = Trainer(recipe, load_ledger(folder)[0], parts, identity, companion)
            try:
                for record in trainer.steps():
                    if isinstance(record, StepRecord):
                        progress.reach(record.step)
            except Outrun:
                continue  # with the state that the others have, and what is decided by now
            return ExitCode.FINISHED


def take_place(parts: Parts, number: int, recipe: Recipe) -> Place:
    """The place of a replica among all, not joined yet."""
    step = parts.step
    if not isinstance(step, ElasticStep):
        raise RecipeError("parallel.elastic: changed while replicas train", "start the run again")
    most_s = recipe.supervise.deadlines()["collective_s"]
    lighthouse = os.environ[LIGHTHOUSE]
    return Place(number, lighthouse, step, parts.progress, most_s, parts.ranks)


def _device(number: int, asked: str) -> torch.device:
    """Of a replica that is one process: the device of its number."""
    device = choose_device(asked)
    if not queues(device):
        return device
    there = torch.get_device_module(device).device_count()
    if number >= there:
        raise RecipeError(
            f"machine.device: replica {number} has no GPU of its own, as this host has {there}",
            "start one replica for each GPU (machine.processes)",
        )
    return claim(torch.device(device.type, number))
