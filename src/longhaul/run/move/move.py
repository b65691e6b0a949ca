"""`longhaul run move`: the two halves of a move, as they are typed in the two clusters."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.clocks import Clock, RealClock
from longhaul.core.errors import UsageError
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder, open_run
from longhaul.logbook.lease import live_holder, user_name
from longhaul.run.move.arrive import Arrival, arrive
from longhaul.run.move.leave import Departure, cancel, leave
from longhaul.run.move.sites import Site, Sites, limit_of
from longhaul.run.train.control_requests import request_stop
from longhaul.store.live_pace import yielding
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import Pace, Throttle

_LOOK_EVERY_S: Seconds = 0.2


@dataclass(frozen=True)
class MoveRequest:
    """What was typed."""

    run: str
    runs: Path
    prepared: Path | None = None
    """Where prepared text lies at the destination; None: as `clusters.toml` has it."""
    to: str | None = None
    source: str | None = None
    here: str | None = None
    """The cluster that this machine is in; None: the one whose folder of runs is given."""
    reason: str = ""
    stop_first: bool = False
    wait_s: Seconds = 600.0
    """For a live run to save and end."""
    cancel: bool = False
    into: Path | None = None
    """The destination's folder of runs, where it is mounted here: both halves are done at once."""
    clusters: Path | None = None


def move(typed: MoveRequest, say: Callable[[str], None]) -> None:
    """Let a run leave for `to`, or arrive from `source`. UsageError if the request is not one of
    both; further errors as of `leave` and `arrive`.
    """
    if (typed.to is None) == (typed.source is None):
        raise UsageError(
            "run move: give one of --to and --from",
            "--to CLUSTER where the run lies now, --from CLUSTER where it goes to",
        )
    sites, clock = Sites.load(typed.clusters), RealClock()
    here = sites.here(typed.runs, typed.here)
    if typed.to is not None:
        _leave(typed, here, sites.other(typed.to, here), clock, say)
    else:
        assert typed.source is not None
        _arrive(typed, here, sites.other(typed.source, here), clock, say)


def _leave(
    typed: MoveRequest, here: Site, there: Site, clock: Clock, say: Callable[[str], None]
) -> None:
    folder = open_run(typed.run, typed.runs)
    files = _files(there, folder.name, (here, there), clock)
    if typed.cancel:
        cancel(folder, files, clock, user_name())
        say(f"run {folder.name} stays in {here.name}; `longhaul train` goes on with it")
        return
    if typed.stop_first:
        _stop(folder, typed, clock, say)
    asked = Departure(here.name, there.name, user_name(), typed.reason)
    with yielding(files.throttle, typed.runs, clock):
        leave(folder, asked, files, clock, say)
        if typed.into is not None:
            arrival = Arrival(there.name, here.name, typed.prepared or there.prepared)
            arrive(RunFolder(typed.into / folder.name), arrival, files, clock, say)
            return
    say(f"  → in {there.name}: `longhaul run move {folder.name} --from {here.name}`")


def _arrive(
    typed: MoveRequest, here: Site, there: Site, clock: Clock, say: Callable[[str], None]
) -> None:
    for name, given in (("--stop", typed.stop_first), ("--cancel", typed.cancel),
                        ("--into", typed.into)):  # fmt: skip
        if given:
            raise UsageError(f"run move: {name} goes with --to", "leave it out")
    name = Path(typed.run).name
    files = _files(here, name, (here, there), clock)
    asked = Arrival(here.name, there.name, typed.prepared or here.prepared)
    with yielding(files.throttle, typed.runs, clock):
        arrive(RunFolder(typed.runs / name), asked, files, clock, say)


def _files(of: Site, name: str, limits: tuple[Site, Site], clock: Clock) -> StoreFiles:
    """The place of a run in the store of its destination."""
    throttle = Throttle(Pace(limit_of(*limits)))
    return StoreFiles(f"{of.store()}/{name}", clock=clock, throttle=throttle)


def _stop(folder: RunFolder, typed: MoveRequest, clock: Clock, say: Callable[[str], None]) -> None:
    if live_holder(folder, clock) is None:
        return
    reason = f"it moves to {typed.to}" + (f": {typed.reason}" if typed.reason else "")
    say(f"run {folder.name}: {request_stop(folder, reason, typed.wait_s)}")
    deadline = time.monotonic() + typed.wait_s
    while (holder := live_holder(folder, clock)) is not None:
        if time.monotonic() > deadline:
            raise UsageError(
                f"run {folder.name} has not ended within {typed.wait_s:g} s; process {holder.pid} "
                f"on {holder.place.host} holds it",
                "give the same command again when it has, or a longer --wait",
            )
        time.sleep(_LOOK_EVERY_S)
