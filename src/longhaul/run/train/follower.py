"""Every rank but the first: the same trainer, which carries out what rank 0 orders.

It makes its part of each step and of each checkpoint, writes no log, and shows nothing.
"""

import time
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import assert_never

from longhaul.checkpoint.restore import restore_as_ordered
from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.shared_memory_snapshot import restore_shared_as_ordered
from longhaul.checkpoint.snapshots import DamagedSnapshot
from longhaul.core.clocks import RealClock, TimeBuckets, process_start
from longhaul.core.errors import ExitCode
from longhaul.core.records import StepRecord
from longhaul.core.signals import leaving_at_once, listening
from longhaul.data.verification import text_for_training
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import LedgerState
from longhaul.logbook.run_spec import read_run_spec
from longhaul.model.compiling import refuse_without_compiler
from longhaul.parallel.control import naming_the_lost_rank, received
from longhaul.parallel.device import choose_device, settle_torch
from longhaul.parallel.layout import Place
from longhaul.parallel.rendezvous import form_ranks, join
from longhaul.parallel.world import FirstAbsent, part
from longhaul.run.diagnose.live_search import FindCause, look_into
from longhaul.run.train.build import begin_with_given, build_parts, keep_generated_code
from longhaul.supervise.ranks.progress import ProgressFile, progress_path
from longhaul.train import orders
from longhaul.train.coordinator import Ended, Follower
from longhaul.train.effective import parts_for
from longhaul.train.memory import measure_as_ordered
from longhaul.train.out_of_memory import MemoryGuard, reporting_in_own_file
from longhaul.train.parts import Identity
from longhaul.train.rank_comparison import SilentCorruption
from longhaul.train.trainer import Trainer

AnyOrder = (
    orders.Apply
    | orders.RollBack
    | orders.RollBackInMemory
    | orders.SaveEvery
    | orders.Stop
    | orders.Evaluate
    | orders.Save
    | orders.Compare
    | orders.WriteSample
    | orders.WaitForStore
    | orders.Accuse
    | orders.End
    | FindCause
)
"""All that rank 0 orders."""


def follow(place: Place, known: RunFolder | None = None) -> ExitCode:
    """Train with rank 0 until it ends; RankLost if one dies or hangs. `known`: the run, or None."""
    clock = RealClock()
    began = time.time() - process_start()
    with ExitStack() as leaving:
        leaving.enter_context(naming_the_lost_rank(place.rank, place.size, "training"))
        leaving.callback(part)
        time_buckets = TimeBuckets(clock, already=max(0.0, began))
        progress = None if known is None else _watched(known, place, time_buckets, leaving)
        try:
            with leaving_at_once():
                control, briefing = join(place)
        except FirstAbsent as absent:
            return absent.exit_code  # it has said why
        folder, recipe = RunFolder(Path(briefing.folder)), briefing.recipe
        progress = progress or _watched(folder, place, time_buckets, leaving)
        stop_request = leaving.enter_context(listening(lambda _: None))  # rank 0 tells of signals
        settle_torch(recipe, place.local_size, briefing.threads)
        refuse_without_compiler(recipe, choose_device(recipe.machine.device))
        ranks = form_ranks(place, control, recipe)
        dataset = text_for_training(folder, read_run_spec(folder), lambda _: None)
        saver = Saver(
            folder.checkpoints, attempt=briefing.attempt, clock=clock, control=ranks.saving,
            still_owner=lambda: True,  # rank 0 asks, and it alone commits
            settled=True,
        )  # fmt: skip
        device, ledger = ranks.device, briefing.ledger
        keep_generated_code(folder, recipe, device)
        parts = build_parts(recipe, ledger, dataset, device, saver, time_buckets, ranks)
        leaving.callback(saver.close, time_buckets.alive)
        leaving.callback(parts.batches.close)
        fill = partial(parts_for, parts.step, parts.progress)
        in_memory = restore_shared_as_ordered(parts.snapshots, fill, ranks.control)
        if not in_memory and restore_as_ordered(fill, ranks.control) is None:
            begin_with_given(parts, recipe)
        emit = reporting_in_own_file(folder, briefing.attempt, place.rank, clock)
        guard = MemoryGuard(parts, recipe, folder, emit)
        with guard.answering():
            measure_as_ordered(recipe, parts, ranks)
        place_among = None
        if recipe.parallel.elastic:
            from longhaul.run.train.elastic import take_place

            place_among = take_place(parts, 0, recipe)
            place_among.join()  # with the others that are the leader
        shared: tuple[LedgerState, Identity] = ranks.control.share()
        ledger, identity = shared

        def obey(order: AnyOrder) -> None:
            carry_out(order, trainer, folder.checkpoints)

        follower = Follower(parts, stop_request, obey, place_among)
        trainer = Trainer(recipe, ledger, parts, identity, follower)
        with guard.answering(trainer):
            return ExitCode(train_until_ended(trainer, progress))


def train_until_ended(trainer: Trainer, progress: ProgressFile | None = None) -> int:
    """Make steps and carry out orders until rank 0 ends; its exit code. Rank 0 writes the records
    down; of this one it is only told how far it has come.
    """
    try:
        for record in trainer.steps():
            if progress is not None and isinstance(record, StepRecord):
                progress.reach(record.step)
    except Ended as end:
        return end.exit_code
    raise AssertionError("a follower ends when rank 0 does")


def carry_out(order: AnyOrder, trainer: Trainer, checkpoints: Path) -> None:
    """Do what rank 0 does at a step boundary; Ended or SilentCorruption if rank 0 has ended."""
    assert trainer.ranks is not None
    control = trainer.ranks.control
    match order:
        case orders.Apply(decision):
            trainer.apply(decision)
        case orders.RollBack():
            _take(trainer.completed())
            trainer.roll_back(lambda parts: restore_as_ordered(parts, control))
        case orders.RollBackInMemory(step):
            _take(trainer.completed())
            with suppress(DamagedSnapshot):  # told by rank 0, which goes to a checkpoint then
                trainer.roll_back_in_memory(step)
        case orders.SaveEvery(steps):
            trainer.save_every(steps)
        case orders.Stop():
            trainer.stop()
        case orders.Evaluate(most_tokens):
            _take(trainer.evaluate(most_tokens))
        case orders.Save():
            _take(trainer.save())
        case orders.Compare(what):
            _take(trainer.compare(what))
        case orders.WriteSample():
            _take(trainer.sample())
        case orders.WaitForStore():
            received(control)
        case FindCause():
            _take(trainer.completed())
            look_into(order, trainer, checkpoints)
        case orders.Accuse(sentence):
            raise SilentCorruption(sentence)
        case orders.End(exit_code):
            raise Ended(exit_code)
        case _:
            assert_never(order)


def _take(records: Iterable[object]) -> None:
    for _ in records:
        pass


def _watched(
    folder: RunFolder, place: Place, time_buckets: TimeBuckets, leaving: ExitStack
) -> ProgressFile:
    progress = leaving.enter_context(closing(ProgressFile(progress_path(folder, place.rank))))
    time_buckets.watch(progress.track)
    return progress
