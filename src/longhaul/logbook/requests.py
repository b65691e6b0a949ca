"""Requests to a running trainer: files that the command line only ever adds, what they may ask for,
and what is refused whoever asks.

Whoever holds the lease consumes them: it journals what it did, with the request's id in the
record's `data["request"]`, and only then removes the file. After a crash between the two, the
journal tells that the request was dealt with (`done_requests`), so it never happens twice. The
command line refuses at once what the handler would refuse: anybody may have written a file.
"""

import json
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from longhaul.config.load import with_overrides
from longhaul.config.problems import unknown_setting
from longhaul.config.recipe import Recipe, change_of
from longhaul.core.clocks import Clock
from longhaul.core.errors import UsageError
from longhaul.core.files import write_bytes
from longhaul.core.records import Decision, Event, Record, Whole
from longhaul.core.strict import read_object
from longhaul.core.units import Seconds
from longhaul.logbook.folder import FORMAT, RunFolder
from longhaul.logbook.holder import newest_attempt
from longhaul.logbook.ledger import LedgerState

_MOST_BYTES = 64 << 10
_STAMP_DIGITS = 17


@dataclass(frozen=True, kw_only=True)
class Request:
    """What somebody asks of the trainer."""

    id: str
    """Also the file's name; sorts by time."""
    kind: str
    """`set`, `stop`, `note`, …"""
    data: Mapping[str, Any]
    who: str
    reason: str
    time: Seconds
    attempt: Whole | None = None
    """Newest attempt at that time, as somebody may set the clock; None in older versions' files."""


_REQUEST = TypeAdapter(Request)


def submit(
    folder: RunFolder, kind: str, data: Mapping[str, Any], *, who: str, reason: str, clock: Clock
) -> Request:
    """Lay a request of now, for the newest attempt, before the trainer, after those that wait:
    there whole, or not at all (OSError).
    """
    folder.requests.mkdir(exist_ok=True)
    now = clock.wall()
    stamps = [path.name.partition("-")[0] for path in _waiting(folder)]
    waiting = [int(s) for s in stamps if s.isdecimal() and len(s) <= _STAMP_DIGITS]
    # To the microsecond: of two requests that a script makes in a row the first comes first.
    stamp = max([round(now * 1e6), *(other + 1 for other in waiting)])
    request = Request(
        id=f"{stamp:0{_STAMP_DIGITS}d}-{secrets.token_hex(4)}", kind=kind, data=data,
        who=who, reason=reason, time=now, attempt=newest_attempt(folder),
    )  # fmt: skip
    text = json.dumps({"format": FORMAT} | asdict(request), indent=2, ensure_ascii=False)
    # Arguments in another encoding arrive as lone surrogates, which no UTF-8 file can hold.
    write_bytes(_path(folder, request), text.encode("utf-8", "replace") + b"\n")
    return request


def pending(folder: RunFolder, done: Collection[str] = frozenset()) -> list[Request]:
    """Requests still to be dealt with, oldest first. Never raises.

    A file that is no request is moved to `requests/refused/`, with the reason beside it; those that
    the journal shows as `done` (`done_requests`) are removed.
    """
    found: list[Request] = []
    for path in _waiting(folder):
        try:
            request = _read(path)
        except OSError:
            continue  # gone or unreadable just now; it is looked at again next time
        except ValueError as error:
            _move_aside(folder, path, f"not a request: {error}")
            continue
        if request.id in done:
            settle(folder, request)
        else:
            found.append(request)
    return found


def settle(folder: RunFolder, request: Request) -> None:
    """Remove a request that the journal shows as dealt with; doing so twice does no harm."""
    with suppress(OSError):
        _path(folder, request).unlink(missing_ok=True)


def refuse(folder: RunFolder, request: Request, reason: str) -> None:
    """Move a request that cannot be honoured to `requests/refused/`, with the reason beside it."""
    _move_aside(folder, _path(folder, request), reason)


def done_requests(records: Iterable[Record]) -> frozenset[str]:
    """Ids of the requests that these events and decisions dealt with."""
    kept = (r.data.get("request") for r in records if isinstance(r, Event | Decision))
    return frozenset(request_id for request_id in kept if isinstance(request_id, str))


def _path(folder: RunFolder, request: Request) -> Path:
    return folder.requests / f"{request.id}.json"


def _waiting(folder: RunFolder) -> list[Path]:
    try:
        # Hidden files are being written; the folder of refused ones is no request.
        names = [p for p in folder.requests.iterdir() if not p.name.startswith(".")]
    except OSError:
        return []
    return sorted(path for path in names if path != folder.refused_requests)


def _read(path: Path) -> Request:
    if path.suffix != ".json" or not path.is_file():
        raise ValueError("not a .json file")
    try:
        request = _REQUEST.validate_python(read_object(path, _MOST_BYTES))
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from None
    if request.id != path.stem:
        raise ValueError(f"its id {request.id!r} is not its file's name")
    return request


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _move_aside(folder: RunFolder, path: Path, reason: str) -> None:
    with suppress(OSError):
        folder.refused_requests.mkdir(exist_ok=True)
        moved = folder.refused_requests / path.name
        path.rename(moved)
        moved.with_name(f"{path.name}.reason").write_text(f"{reason}\n", errors="replace")


RESETS = ("optimizer", "loss-scale", "schedule", "data")
"""What a fork may begin anew."""
_LEAP = 10_000.0
"""Times the rate in force. People change rates by factors of two to a hundred; beyond this a minus
or a digit is missing, as in 6e5 for 6e-5. No rate is too high by itself: it depends on the rule."""


class Refused(UsageError):
    """A request that cannot be honoured; nothing was changed."""


@dataclass(frozen=True)
class Note:
    """Write something down."""

    text: str


@dataclass(frozen=True)
class Set:
    """Change one setting, at once or from a later step on."""

    path: str
    value: Any = None
    from_step: int = 0
    force: bool = False


@dataclass(frozen=True)
class Skip:
    """Pass over draws `begin` to `end` of the data."""

    begin: int
    end: int


@dataclass(frozen=True)
class RollBack:
    """Go back to the newest state at or before a step."""

    to: int


@dataclass(frozen=True)
class Fork:
    """Begin a new line of descent at a step."""

    at: int
    set: dict[str, Any] = field(default_factory=dict)
    reset: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class Stop:
    """Save and end."""


Arguments = Note | Set | Skip | RollBack | Fork | Stop
_KINDS: dict[str, type[Arguments]] = {
    "note": Note, "set": Set, "skip": Skip, "rollback": RollBack, "fork": Fork, "stop": Stop,
}  # fmt: skip


def arguments_of(request: Request) -> Arguments:
    """What is asked for, unknown fields passed over; Refused if it is no request or lacks one."""
    kind = _KINDS.get(request.kind)
    if kind is None:
        raise Refused(f"{request.kind}: this longhaul knows no such request")
    try:
        return TypeAdapter(kind).validate_python(dict(request.data))
    except ValidationError as error:
        what = f"{request.kind} {dict(request.data)}"
        raise Refused(f"{what}: makes no sense ({_first_problem(error)})") from error


def changed_recipe(
    before: Recipe,
    changed: Mapping[str, Any],
    origins: Mapping[str, str],
    ledger: LedgerState,
    step: int,
    *,
    force: bool,
) -> Recipe:
    """The settings of a run after a change that somebody asks for while it trains.

    `changed` is dotted path → value, `origins` dotted path → where it was asked; `step` counts the
    updates made when the change comes into force. With `force` somebody insists: then a leap of the
    learning rate is no slip, and what the run had to undo already is not undone again: what comes
    of it is left to the ladders.

    Raises:
        RecipeError: a value is impossible.
        Refused: a setting cannot change while a run trains, or its value makes no sense there.
    """
    refuse_unless_live(changed)
    after = with_overrides(before, changed, origins)
    begin = after.optim.schedule.from_step
    if begin > step and begin != before.optim.schedule.from_step:
        raise Refused(
            f"optim.schedule.from_step: {begin} lies ahead; the run will stand at step {step}",
            "a schedule begins at a step that was made; until then nothing would be scheduled",
        )
    if force:
        return after
    was, new = before.optim.lr, after.optim.lr
    if not was / _LEAP <= new <= was * _LEAP:
        raise Refused(
            f"optim.lr: {new:g} is {new / was:.0e} times the {was:g} in force",
            "if it is no slip of the pen, ask again with --force",
        )
    for path, value in changed.items():
        undone = ledger.undone(path, value)
        if undone is not None:
            raise Refused(
                f"{path}: {value} is as far out as what was undone at step {undone.step:,} "
                f"because of {undone.cause}",
                "if you want it all the same, ask again with --force; it is not undone again",
            )
    return after


def refuse_unless_live(paths: Iterable[str]) -> None:
    """Refused if one of the settings may not change while a run trains."""
    for path in paths:
        when = change_of(path)
        if when is None:
            raise Refused(str(unknown_setting(path)))
        if when == "restart":
            raise Refused(
                f"{path}: cannot change while a run trains",
                f"stop the run, then `longhaul train RECIPE --set {path}=…`",
            )
        if when == "never":
            raise Refused(
                f"{path}: cannot change while a run trains, nor later: it decides what this run is",
                "start another run with --new",
            )


def refuse_resets(resets: Iterable[str]) -> None:
    """Refused if one of them is nothing that a fork can begin anew."""
    if unknown := [what for what in resets if what not in RESETS]:
        raise Refused(f"--reset {unknown[0]}: not one of {', '.join(RESETS)}")
