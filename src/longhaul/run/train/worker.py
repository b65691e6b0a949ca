"""The worker: one attempt at a run, from its folder alone, whoever started it."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from longhaul.core.addresses import is_cut_off, unsealed
from longhaul.core.clocks import RealClock, TimeBuckets, process_start
from longhaul.core.errors import ExitCode, RecipeError
from longhaul.core.heap import importing
from longhaul.core.output import View, print_error
from longhaul.core.signals import leaving_at_once, listening
from longhaul.data.verification import text_for_training, verifying
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import Lease, acquire, join
from longhaul.logbook.moves import refuse_if_moved
from longhaul.logbook.run_history import read_run_history
from longhaul.logbook.run_log import RunLog
from longhaul.logbook.run_spec import read_run_spec
from longhaul.parallel.layout import Place, find_place, layout_for
from longhaul.run.train.attempt import Attempt
from longhaul.store.bring_back import emit_if_brought_back
from longhaul.store.tiers import Tiers
from longhaul.supervise.nodes.placement import within_layout
from longhaul.supervise.pipes import hold_on
from longhaul.supervise.ranks.group import ATTEMPT, BEGAN
from longhaul.supervise.ranks.progress import ProgressFile, progress_path
from longhaul.supervise.ranks.stacks import answer_for_stacks
from longhaul.supervise.replicas import REPLICA


def enter(folder: RunFolder, view: View) -> ExitCode:
    """Work under the lease of its supervisor, or its own; LeaseHeld if somebody else trains."""
    if os.environ.get(REPLICA, "0") != "0":
        with importing():
            from longhaul.run.train.elastic import follow_leader

        return follow_leader(folder)
    place = find_place(os.environ)
    if place is not None and place.rank > 0:
        with importing():
            from longhaul.run.train.follower import follow

        with answer_for_stacks(folder, place.rank):
            grace_s = read_run_spec(folder).settings().supervise.grace_s
            hold_on(os.environ, grace_s, folder.workers / f"{place.rank}.log")
            return follow(place, folder)
    clock = RealClock()
    if ATTEMPT in os.environ:
        return work(folder, join(folder, int(os.environ[ATTEMPT]), clock), view)

    def own() -> ExitCode:
        with acquire(folder, clock).keep() as lease:
            refuse_if_moved(folder)
            return work(folder, lease, view)

    return leading(place, own)


def leading(place: Place | None, body: Callable[[], ExitCode]) -> ExitCode:
    """Run what rank 0 does; of several ranks, so that the others are told if it ends early."""
    if place is None:
        return body()
    from longhaul.parallel.world import reporting_absence

    return reporting_absence(place, body)


def work(folder: RunFolder, lease: Lease, view: View) -> ExitCode:
    """Train the run in `folder` until it is finished or has to stop. DataError if its text cannot
    be prepared, or is not what was prepared any more; NeedsPerson if going on would do harm.
    """
    clock = RealClock()
    rank = int(os.environ.get("RANK", "0"))
    began = float(os.environ.get(BEGAN) or process_start())
    with ExitStack() as leaving:
        leaving.enter_context(answer_for_stacks(folder, rank))
        progress = leaving.enter_context(closing(ProgressFile(progress_path(folder, rank))))
        history, already = read_run_history(folder), max(0.0, time.time() - began)
        time_buckets = TimeBuckets(
            clock, history.start_bucket, already=already, watcher=progress.track
        )
        if history.last_seen is not None:
            time_buckets.add("idle", max(0.0, began - history.last_seen))
        run_log = RunLog(folder, lease, history, clock, time_buckets)
        leaving.callback(run_log.close)
        emit_if_brought_back(folder, run_log)
        asked = read_run_spec(folder)
        settings = within_layout(asked.settings(), os.environ)
        place = find_place(os.environ)
        # Refused before torch is imported.
        layout_for(settings.parallel, place.size if place else 1)
        if place is not None and settings.parallel.elastic and REPLICA not in os.environ:
            raise RecipeError(
                f"parallel.elastic: {place.size} ranks of one world were started, no replicas",
                "let `longhaul train` start them, or set parallel.elastic=false",
            )
        if settings.init.from_ is not None and not history.begun:
            from longhaul.interop.hf.given import refuse_unfit

            refuse_unfit(settings)
        if is_cut_off():
            for address in settings.checkpoint.remote:
                unsealed(address)  # or each upload would fail, for as long as the run goes on
        log = folder.workers / f"{rank}.log"
        orphaned = hold_on(os.environ, settings.supervise.grace_s, log).is_set
        tiers = Tiers(settings, run_log, view.say)
        leaving.callback(tiers.close)
        if history.damaged_lines:
            view.say(
                f"WARNING: {history.damaged_lines} damaged lines in the journal; a decision may be "
                f"lost: compare `longhaul diff {folder.name}`"
            )
        with leaving_at_once(), time_buckets.track("prepare"):
            dataset = text_for_training(folder, asked, view.say)
            verification = leaving.enter_context(verifying(dataset.folder, folder.path, view.say))
        attempt = Attempt(settings, run_log, view, tiers, progress, verification)
        stop_request = leaving.enter_context(listening(print_error, orphaned))
        spin_little()
        # Torch takes a second to import; mistakes in the recipe or the text were refused before.
        with importing():
            from longhaul.run.train.run_attempt import run_attempt

        return run_attempt(attempt, dataset, stop_request)


def spin_little() -> None:
    """Settle how threads wait for each other; before torch is imported, whose OpenMP reads it.

    By default a thread that waits for the others spins for milliseconds; beside one busy process
    on two cores that made steps up to 54 times slower. A tenth of the default's turns costs little
    on an idle machine and keeps the worst away; set the variable to choose otherwise (LOG.md,
    2026-11-21).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
