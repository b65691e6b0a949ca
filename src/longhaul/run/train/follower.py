"""Every rank but the first: the same trainer, which does what rank 0 says.

Enters: a place among many processes; the rest is told by rank 0. Leaves: this rank's part of each
step and of each checkpoint, and rank 0's exit code. It writes no logbook and shows nothing.
Never knows: how the run was started, or why anything is decided.
"""

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from longhaul.checkpoint.capture import PartsFor
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import RealClock, TimeBooks, process_start
from longhaul.core.errors import ExitCode
from longhaul.core.output import SilentView
from longhaul.core.signals import leaving_at_once, listening
from longhaul.data.dataset import Dataset
from longhaul.data.verification import text_for_training
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import LedgerState
from longhaul.logbook.run_spec import read_asked
from longhaul.model.compiling import refuse_without_compiler
from longhaul.parallel.control import telling_who_is_lost
from longhaul.parallel.device import choose_device, settle_torch
from longhaul.parallel.layout import Place
from longhaul.parallel.world import FirstAbsent, Ranks, part
from longhaul.run.diagnose.live_cause import CAUSE, look_into_told
from longhaul.run.train.build import Site, build_parts
from longhaul.run.train.finish import write_sample
from longhaul.run.train.micro_batch import measure_told
from longhaul.run.train.out_of_memory import MemoryGuard, telling_in_own_file
from longhaul.run.train.rendezvous import Briefing, form_ranks, join, wishes_of
from longhaul.run.train.restore import restore_told
from longhaul.run.train.rollback import WAIT, wait_told
from longhaul.run.train.shared_memory_snapshot import restore_survivor_told
from longhaul.supervise.ranks.progress import ProgressFile, progress_path
from longhaul.train.leading import FollowingTrainer
from longhaul.train.parts import Identity, Parts
from longhaul.train.renew import parts_for


def follow(place: Place, folder: RunFolder | None = None) -> ExitCode:
    """Train with rank 0 until it ends.

    Args:
        place: not the first.
        folder: the run's, where it is known before rank 0 tells it.

    Raises:
        RankLost: another rank has died, or hangs.
    """
    clock = RealClock()
    began = time.time() - process_start()
    with ExitStack() as leaving:
        leaving.enter_context(telling_who_is_lost(place.rank, place.size, "training"))
        leaving.callback(part)
        books = TimeBooks(clock, already=max(0.0, began))
        progress = None if folder is None else _watched(folder, place, books, leaving)
        try:
            with leaving_at_once():
                control, briefing = join(place)
        except FirstAbsent as absent:
            return absent.exit_code  # it has said why
        folder = RunFolder(Path(briefing.folder))
        if progress is None:
            progress = _watched(folder, place, books, leaving)
        wish = leaving.enter_context(listening(lambda _: None))  # rank 0 tells of signals
        settle_torch(briefing.recipe, place.local_size, briefing.threads)
        refuse_without_compiler(briefing.recipe, choose_device(briefing.recipe.machine.device))
        ranks = form_ranks(place, control, briefing.recipe)
        dataset = text_for_training(folder, read_asked(folder), lambda _: None)
        parts = _restored_parts(briefing, folder, dataset, ranks, books, leaving)
        tell = telling_in_own_file(folder, briefing.attempt, place.rank, clock)
        guard = MemoryGuard(parts, briefing.recipe, folder, tell)
        with guard.answering():
            measure_told(briefing.recipe, parts, ranks)
        kind = _kind_of_trainer(parts, briefing.recipe)
        told: tuple[LedgerState, Identity] = ranks.control.share()
        ledger, identity = told
        trainer = kind(
            briefing.recipe,
            ledger,
            parts,
            identity,
            wishes_of(wish),
            restore=partial(_restore, ranks),
            others={
                "sample": lambda: write_sample(trainer, dataset, books.alive),
                WAIT: partial(wait_told, ranks.control),
                CAUSE: lambda question: look_into_told(question, trainer, folder.checkpoints),
            },
            reached=progress.reach,
        )
        with guard.answering(trainer):
            return ExitCode(trainer.follow())


def _restored_parts(
    briefing: Briefing,
    folder: RunFolder,
    dataset: Dataset,
    ranks: Ranks,
    books: TimeBooks,
    leaving: ExitStack,
) -> Parts:
    """Parts of one rank, in the state that rank 0 has all go on from."""
    site = Site(
        briefing.recipe,
        briefing.ledger,
        folder.checkpoints,
        briefing.attempt,
        still_owner=lambda: True,  # rank 0 asks, and it alone commits
        books=books,
        clock=RealClock(),
        view=SilentView(),
        ranks=ranks,
    )
    parts = build_parts(site, dataset, ranks.world.device)
    leaving.callback(parts.saver.close, books.alive)
    leaving.callback(parts.batches.close)
    fill = partial(parts_for, parts.step, parts.progress)
    if not restore_survivor_told(parts.snapshots, fill, ranks.control):
        restore_told(fill, ranks.control)
    return parts


def _kind_of_trainer(parts: Parts, recipe: Recipe) -> type[FollowingTrainer]:
    if not recipe.parallel.elastic:
        return FollowingTrainer
    from longhaul.run.train.elastic import join_with_pilot

    return join_with_pilot(parts, recipe)


def _restore(ranks: Ranks, parts: PartsFor) -> None:
    restore_told(parts, ranks.control)


def _watched(folder: RunFolder, place: Place, books: TimeBooks, leaving: ExitStack) -> ProgressFile:
    progress = ProgressFile(progress_path(folder, place.rank))
    leaving.callback(progress.close)
    books.watch(progress.booked)
    return progress
