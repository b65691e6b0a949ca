"""Where a run has gone: `moved.json` in its folder, which every start reads first.

While the file is there nobody trains the run in this folder: it is leaving for another cluster, has
left, or has not arrived yet. The last step of an arrival removes it.
"""

import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import TypeAdapter

from longhaul.core.errors import NeedsPerson, UsageError
from longhaul.core.files import fsync_folder, write_json
from longhaul.core.records import Moment, Whole
from longhaul.core.strict import read_object
from longhaul.logbook.folder import FORMAT, RunFolder

_NAME = "moved.json"

MoveState = Literal["leaving", "away", "arriving"]
"""leaving: no offer of it lies in the store yet, or nobody knows. away: another cluster may have
begun with it. arriving: it comes from another cluster, and not all of it is here."""


@dataclass(frozen=True, kw_only=True)
class RunMove:
    """One move of a run, as one of its two folders sees it."""

    move: str
    """Sixteen hexadecimal digits; the same in both folders and in the store."""
    state: MoveState
    source: str
    """The cluster that it leaves."""
    destination: str
    """The cluster that it goes to."""
    tier: str
    """Address of the store between them, without secrets."""
    step: Whole
    """Of the checkpoint that goes with it."""
    who: str
    reason: str
    time: Moment
    """Unix time at which the move began."""


_MOVE = TypeAdapter(RunMove)


class RunMoved(NeedsPerson):
    """The run is not here, or not whole: it was moved, or a move is not finished."""


def move_of(folder: RunFolder) -> RunMove | None:
    """The move that keeps a run from being started here; None if there is none.

    UsageError if its file is damaged: a run that may train elsewhere must not start here.
    """
    path = folder.path / _NAME
    try:
        body = read_object(path)
        body.pop("format", None)
        return _MOVE.validate_python(body)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path}: cannot be read ({str(error).partition(chr(10))[0]}), and the run may train "
            "in another cluster",
            "find out where it trains (`longhaul runs --all`); remove the file only if it is here",
        ) from error


def write_move(folder: RunFolder, move: RunMove) -> None:
    """Keep the run from being started here from now on, durably. OSError if that is refused."""
    folder.path.mkdir(parents=True, exist_ok=True)
    write_json(folder.path / _NAME, {"format": FORMAT} | asdict(move))
    fsync_folder(folder.path.parent)


def end_move(folder: RunFolder) -> None:
    """Let the run be started here again."""
    with suppress(FileNotFoundError):
        (folder.path / _NAME).unlink()
    fsync_folder(folder.path)


def is_moved(folder: RunFolder) -> bool:
    """Whether a move keeps the run from being started here; a damaged file counts."""
    return (folder.path / _NAME).exists()


def refuse_if_moved(folder: RunFolder) -> None:
    """Let only a run start that is here, and whole; RunMoved says where it is, and the way out."""
    move = move_of(folder)
    if move is None:
        return
    name, begun = folder.name, time.strftime("%Y-%m-%d %H:%M", time.localtime(move.time))
    by = f"by {move.who} on {begun}" + (f" ({move.reason})" if move.reason else "")
    again = f"longhaul run move {name}"
    if move.state == "arriving":
        raise RunMoved(
            f"run {name} comes from cluster {move.source}, and not all of it is here yet",
            f"`{again} --from {move.source}` goes on with it",
        )
    if move.state == "leaving":
        raise RunMoved(
            f"run {name} is being moved to cluster {move.destination}, {by}; nothing of it starts "
            "here meanwhile",
            f"`{again} --to {move.destination}` finishes the move, with --cancel it ends it",
        )
    raise RunMoved(
        f"run {name} was moved to cluster {move.destination} at step {move.step:,}, {by}",
        f"it goes on there. Back: `{again} --to {move.source}` there, and then "
        f"`{again} --from {move.destination}` here; while nobody has taken it there, "
        f"`{again} --to {move.destination} --cancel` here",
    )
