"""`longhaul runs --all`: the runs of every cluster, as far as each answers."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, Queue

from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError
from longhaul.core.events import EventKind
from longhaul.core.records import Event
from longhaul.core.units import Seconds, short_seconds
from longhaul.logbook.folder import RunFolder, created_of, list_runs
from longhaul.logbook.holder import newest_attempt
from longhaul.logbook.moves import move_of
from longhaul.logbook.reading import journal_files, read_journal
from longhaul.logbook.summary import RunSummary, summarize
from longhaul.run.move.sites import Site
from longhaul.store.remote_log import FOLDER
from longhaul.store.remote_run import look_at
from longhaul.store.run_offer import offers, taken_by
from longhaul.store.store_files import StoreFiles


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run in one cluster."""

    cluster: str
    run: str
    state: str
    """As of `longhaul runs`; moved, leaving or arriving; elsewhere: it may be live, and its store
    does not tell."""
    where: str = ""
    """The cluster that it was moved to, or comes from; where it was looked up, if in a store."""
    attempt: int = 0
    """The newest that is known there."""
    created: Seconds | None = None
    last_move: str = ""
    """Where the run's last move went, as its log has it here; empty: it was never moved."""
    summary: RunSummary | None = None
    """None where it cannot be read."""


@dataclass(frozen=True)
class Overview:
    """What was found."""

    rows: tuple[Row, ...]
    silent: tuple[str, ...]
    """A line for each cluster that did not answer."""


def settled(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of one run in several clusters, told apart: it lives where its last move went, as the
    row with the newest attempt knows it. Pure.
    """
    found = []
    for row in rows:
        same = [r for r in rows if (r.run, r.created) == (row.run, row.created)]
        home = max(same, key=lambda r: r.attempt).last_move
        marked = row.state in ("moved", "leaving", "arriving")
        if row.created is not None and home not in ("", row.cluster) and not marked:
            row = replace(row, state="moved", where=f"to {home}")
        found.append(row)
    return tuple(sorted(found, key=lambda r: (r.run, r.state == "moved", r.cluster)))


def overview(
    sites: Sequence[Site], here: Site | None, runs: Path, clock: Clock, wait_s: Seconds
) -> Overview:
    """Ask every cluster at once, `wait_s` seconds at most: its folder of runs where that is
    mounted, else its store. What a store has is copied below `runs`.
    """
    answers: Queue[tuple[str, list[Row] | str]] = Queue()
    for site in sites:
        # A daemon: a file system or a store that hangs must not keep the command.
        thread = threading.Thread(
            target=_answer, args=(site, here, runs, clock, answers), daemon=True
        )
        thread.start()
    waiting, rows, silent = {site.name for site in sites}, [], []
    deadline = clock.monotonic() + wait_s
    while waiting:
        try:
            name, answer = answers.get(timeout=max(0.0, deadline - clock.monotonic()))
        except Empty:
            break
        waiting.discard(name)
        if isinstance(answer, str):
            silent.append(f"cluster {name}: {answer}")
        else:
            rows += answer
    silent += [f"cluster {n}: no answer within {short_seconds(wait_s)}" for n in sorted(waiting)]
    return Overview(settled(rows), tuple(sorted(silent)))


def _answer(
    site: Site,
    here: Site | None,
    runs: Path,
    clock: Clock,
    answers: "Queue[tuple[str, list[Row] | str]]",
) -> None:
    try:
        is_here = here is not None and site.name == here.name
        folder = runs if is_here else site.runs
        # Two clusters may call their folders the same: this one's is not the other's.
        mounted = is_here or (folder.is_dir() and folder.resolve() != runs.resolve())
        if mounted:
            found = list(_mounted(site, folder, clock))
        elif site.remote:
            found = list(_stored(site, runs, clock))
        else:
            raise LonghaulError(f"{site.runs} is not mounted here, and it has no remote tier")
        answers.put((site.name, found))
    except Exception as error:  # noqa: BLE001 (one cluster must not hold the others up)
        message = getattr(error, "message", "") or str(error) or type(error).__name__
        answers.put((site.name, str(message).partition("\n")[0]))


def _mounted(site: Site, runs: Path, clock: Clock) -> Iterator[Row]:
    folders = {folder.name: folder for folder in list_runs(runs)}
    for name, folder in folders.items():
        row = _row(site, folder, clock)
        with suppress(LonghaulError):
            if (move := move_of(folder)) is not None:
                words = {"leaving": f"to {move.destination}", "away": f"to {move.destination}",
                         "arriving": f"from {move.source}"}  # fmt: skip
                state = "moved" if move.state == "away" else move.state
                row = replace(row, state=state, where=words[move.state])
        yield replace(row, run=name)


def _stored(site: Site, runs: Path, clock: Clock) -> Iterator[Row]:
    address = site.store()
    for name in StoreFiles(address).names():
        files = StoreFiles(f"{address}/{name}")
        if FOLDER not in files.names():
            continue
        remote = look_at(f"{address}/{name}", runs, _nobody)
        row = _row(site, remote.folder, clock)
        state = "elsewhere" if row.state in ("live", "dead") else row.state
        row = replace(row, run=name, state=state, where="as its store has it")
        known = offers(files)
        # An offer that nobody has taken, and nobody has trained since.
        if known and known[0].attempt >= row.attempt and not taken_by(files, known[0]):
            row = replace(row, state="arriving", where=f"from {known[0].source}")
        yield row


def _row(site: Site, folder: RunFolder, clock: Clock) -> Row:
    row = Row(
        cluster=site.name, run=folder.name, state="unreadable", created=created_of(folder),
        attempt=max([newest_attempt(folder), *(f.attempt for f in journal_files(folder.journal))]),
    )  # fmt: skip
    try:
        summary = summarize(folder, clock)
        moves = [
            str(r.data.get("destination", ""))
            for r in read_journal(folder, steps=False)
            if isinstance(r, Event) and r.kind == EventKind.MOVED
        ]
    except Exception:  # noqa: BLE001 (one broken folder must not hide the others)
        return row
    return replace(row, state=summary.state, summary=summary, last_move=(moves or [""])[-1])


def _nobody(_: str) -> None:
    """Who hears what a copy says."""
