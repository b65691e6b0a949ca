"""`longhaul qualify`: every rank measures, rank 0 judges, writes down and tells the others."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longhaul.cluster.qualify.battery import Gathered, Options, alone, together
from longhaul.cluster.qualify.outcome import Outcome, judge, outcome_of
from longhaul.cluster.qualify.records import GROUPS, Group
from longhaul.cluster.qualify.remembering import (
    events_of,
    expected_failures,
    past_of,
    response_times,
)
from longhaul.cluster.qualify.rendezvous import Rendezvous, place_of
from longhaul.config.load import load_recipe
from longhaul.config.size import known_vocabulary
from longhaul.core.errors import ExitCode, LonghaulError, NeedsPerson, UsageError
from longhaul.core.files import write_json
from longhaul.core.units import Bytes, Seconds
from longhaul.plan.memory import checkpoint_bytes
from longhaul.supervise.nodes.ledger import NodeEvent, append, read

Say = Callable[[str], None]
_LOCAL_QUICK_S: Seconds = 300.0
_LOCAL_S: Seconds = 1800.0
_JSON = "--json"
_FAREWELL_S: Seconds = 5.0
"""In which the other ranks hear the verdict, before rank 0 takes the store with it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person, or a launcher, has typed."""

    recipe: str | None = None
    groups: tuple[Group, ...] = GROUPS
    quick: bool = False
    folder: Path = Path()
    """Whose medium is measured: where runs will lie."""
    remote: tuple[str, ...] = ()
    out: Path = Path("qualify")
    """Gets a file for each rank, the outcome, and the history if no ledger is named."""
    ledger: Path | None = None
    json: Path | None = None
    page: Path | None = None
    minutes: float | None = None
    """Of load on each device."""
    deadline_s: Seconds = 30.0
    """Of any exchange between ranks."""
    meet_s: Seconds = 120.0


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended in this process."""

    code: ExitCode
    outcome: Outcome | None = None
    """In rank 0 alone."""
    ranks: int = 1
    notes: tuple[str, ...] = field(default=())
    """What could not be written down."""


def qualify(asked: Asked, say: Say) -> Result:
    """Run the battery; UsageError for a mistake, NeedsPerson if rank 0 cannot be reached."""
    options, ledger = _options(asked)
    place = place_of(os.environ)
    limit_s = options.meet_s + options.local_s * place.size + 20 * options.exchange_s
    with _at_most(limit_s):
        if place.size == 1:
            outcome, notes = _conclude(asked, ledger, alone(options, say))
            return Result(_code(outcome, notes), outcome, 1, notes)
        gathered, rendezvous = together(options, place, say if not place.rank else _silent)
        if gathered is None:
            heard = rendezvous.hear("code", 4 * options.exchange_s)
            rendezvous_over(rendezvous)
            code = ExitCode.NEEDS_PERSON if heard is None else ExitCode(heard)
            return Result(code, None, place.size)
        outcome, notes = _conclude(asked, ledger, gathered)
        code = _code(outcome, notes)
        rendezvous.announce("code", int(code))
        others = [report.rank for report in gathered.reports if report.rank]
        rendezvous.gather("over", _FAREWELL_S, others)
        return Result(code, outcome, place.size, notes)


def _code(outcome: Outcome, notes: Sequence[str]) -> ExitCode:
    """A program that asked for a file must not take an old one, or none, for a verdict."""
    lacks_file = any(note.startswith(_JSON) for note in notes)
    return ExitCode.NEEDS_PERSON if lacks_file and outcome.passed else outcome.code


def rendezvous_over(rendezvous: Rendezvous) -> None:
    """Let rank 0 go; it may have gone already."""
    with suppress(NeedsPerson):
        rendezvous.hand_in("over")


def _silent(_: str) -> None:
    """Only rank 0 says how far it is."""


def _options(asked: Asked) -> tuple[Options, Path]:
    size: Bytes = 0
    remote, ledger = asked.remote, asked.ledger
    if asked.recipe is not None:
        recipe = load_recipe(asked.recipe).recipe
        size = checkpoint_bytes(recipe, known_vocabulary(recipe)[0])
        remote = (*remote, *(each for each in recipe.checkpoint.remote if each not in remote))
        if ledger is None and recipe.supervise.node_ledger:
            ledger = Path(recipe.supervise.node_ledger)
    if not asked.folder.is_dir():
        raise UsageError(f"--folder: {asked.folder} is no folder", "name the one that holds runs")
    options = Options(
        groups=asked.groups, quick=asked.quick, folder=asked.folder, remote=remote,
        checkpoint=size, seconds=None if asked.minutes is None else asked.minutes * 60,
        meet_s=asked.meet_s, exchange_s=asked.deadline_s,
        local_s=_LOCAL_QUICK_S if asked.quick else _LOCAL_S,
    )  # fmt: skip
    return options, asked.out if ledger is None else ledger


def _conclude(asked: Asked, ledger: Path, gathered: Gathered) -> tuple[Outcome, tuple[str, ...]]:
    """Judge, and write down what follows. A medium that refuses is named; the verdict stands."""
    notes: list[str] = []
    events: tuple[NodeEvent, ...] = ()
    now = time.time()
    try:
        events = read(ledger)
    except OSError as error:
        notes.append(f"the node ledger in {ledger} cannot be read: {error.strerror or error}")
    reports = gathered.reports
    outcome = judge(
        reports, past_of(reports, events), size=gathered.size, time=now, quick=asked.quick,
        groups=asked.groups, absent=gathered.absent,
        failures_per_day=expected_failures(reports, events, now),
        response_s=response_times(events),
    )  # fmt: skip
    writes: list[tuple[str, Callable[[], None]]] = [
        ("the node ledger", lambda: _remember(ledger, events_of(outcome, events))),
        ("the ranks' reports", lambda: _write_reports(asked.out, gathered)),
        ("the outcome", lambda: write_json(asked.out / "qualify.json", outcome.as_json())),
    ]  # fmt: skip
    if asked.json is not None:
        target = asked.json
        writes.append((f"{_JSON} {target}", lambda: write_json(target, outcome.as_json())))
    if asked.page is not None:
        writes.append((f"--page {asked.page}", lambda: _write_page(asked.page, outcome)))
    for what, write in writes:
        try:
            write()
        except (OSError, LonghaulError) as error:
            notes.append(f"{what} could not be written: {error}")
    return outcome, tuple(notes)


def _remember(ledger: Path, events: Sequence[NodeEvent]) -> None:
    for event in events:
        append(ledger, event)


def _write_reports(out: Path, gathered: Gathered) -> None:
    folder = out / "nodes"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):  # of the battery before, which may have had more ranks
        old.unlink()
    for report in gathered.reports:
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in report.host)
        write_json(folder / f"{safe}-{report.rank}.json", report.as_json())


def _write_page(path: Path | None, outcome: Outcome) -> None:
    from longhaul.board.qualification import write_page

    if path is not None:
        write_page(path, outcome)


def read_outcome(path: Path) -> Outcome:
    """An outcome that was written before; UsageError if it is none."""
    try:
        body: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})", "name a file") from error
    except ValueError as error:
        raise UsageError(f"{path}: is no JSON ({error})", "make it with --json FILE") from error
    if not isinstance(body, Mapping):
        raise UsageError(f"{path}: no outcome of `longhaul qualify`", "make it with --json FILE")
    return outcome_of(body, str(path))


class _at_most:  # noqa: N801 (a context manager, read as a verb)
    """End this process with 17 if the body takes longer: a driver that hangs heeds nothing else."""

    def __init__(self, seconds: Seconds) -> None:
        self._timer = threading.Timer(seconds, _give_up, (seconds,))
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _give_up(seconds: Seconds) -> None:
    print(f"longhaul qualify: no end after {seconds:.0f} s; something here hangs", file=sys.stderr)
    sys.stderr.flush()
    os._exit(ExitCode.NEEDS_PERSON)
