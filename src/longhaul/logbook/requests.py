"""Requests to a running trainer, as files that the command line only ever adds.

Whoever holds the lease consumes them: it journals what it did, with the request's id in the
record's `data["request"]`, and only then removes the file. After a crash between the two, the
journal tells that the request was dealt with (`done_requests`), so it never happens twice.
"""

import json
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from longhaul.core.clocks import Clock
from longhaul.core.files import write_bytes
from longhaul.core.records import Decision, Event, Record, Whole
from longhaul.core.strict import read_object
from longhaul.core.units import Seconds
from longhaul.logbook.folder import FORMAT, RunFolder
from longhaul.logbook.holder import newest_attempt

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


def new_request(
    kind: str,
    data: Mapping[str, Any],
    *,
    who: str,
    reason: str,
    clock: Clock,
    folder: RunFolder | None = None,
) -> Request:
    """A request of now, with an id of its own.

    With the run's `folder` it comes after those that wait there, and is for the newest attempt.
    """
    now, attempt = clock.wall(), None
    # To the microsecond: of two requests that a script makes in a row the first comes first.
    stamp = round(now * 1e6)
    if folder is not None:
        attempt = newest_attempt(folder)
        stamps = [path.name.partition("-")[0] for path in _waiting(folder)]
        waiting = [int(s) for s in stamps if s.isdecimal() and len(s) <= _STAMP_DIGITS]
        stamp = max([stamp, *(other + 1 for other in waiting)])
    return Request(
        id=f"{stamp:0{_STAMP_DIGITS}d}-{secrets.token_hex(4)}", kind=kind, data=data,
        who=who, reason=reason, time=now, attempt=attempt,
    )  # fmt: skip


def submit(folder: RunFolder, request: Request) -> None:
    """Lay a request before the trainer: there whole, or not at all (OSError)."""
    folder.requests.mkdir(exist_ok=True)
    text = json.dumps({"format": FORMAT} | asdict(request), indent=2, ensure_ascii=False)
    # Arguments in another encoding arrive as lone surrogates, which no UTF-8 file can hold.
    write_bytes(_path(folder, request), text.encode("utf-8", "replace") + b"\n")


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
    request = _REQUEST.validate_python(read_object(path, _MOST_BYTES))
    if request.id != path.stem:
        raise ValueError(f"its id {request.id!r} is not its file's name")
    return request


def _move_aside(folder: RunFolder, path: Path, reason: str) -> None:
    with suppress(OSError):
        folder.refused_requests.mkdir(exist_ok=True)
        moved = folder.refused_requests / path.name
        path.rename(moved)
        moved.with_name(f"{path.name}.reason").write_text(f"{reason}\n", errors="replace")
