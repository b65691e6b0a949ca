"""Follows a run's journal for one target, and goes on where it, or another process, has stopped.

How far it has come lies in a file beside what it wrote: the position in the journal together with
what the target must know. Either both are kept or neither, so that no record is shown twice.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from longhaul.core.errors import UsageError
from longhaul.core.files import write_json
from longhaul.core.records import Record, finite_or_word
from longhaul.core.strict import read_object
from longhaul.logbook.folder import FORMAT, RunFolder, created_of
from longhaul.logbook.holder import Place, here, process_started
from longhaul.logbook.reading import JournalFollower, Position


class Target:
    """What a run is mirrored to. What cannot be written raises OSError, and is tried again."""

    def take(self, record: Record) -> None:
        """One record, in the order of the journal."""

    def look_ends(self) -> None:
        """All records that there are by now have been taken: hand them over."""

    def training_ended(self, exit_code: int | None) -> None:
        """The supervisor has ended with this code; None: it died."""

    def close(self) -> None:
        """Nothing more comes."""

    def state(self) -> Mapping[str, Any]:
        """What `restore` needs to go on after the last look."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there; what was taken since then comes again. ValueError if it is damaged."""


@dataclass(frozen=True)
class Process:
    """Who mirrors."""

    pid: int
    started: str
    place: Place

    @classmethod
    def this(cls) -> "Process":
        """The process that asks."""
        return cls(os.getpid(), process_started(os.getpid()) or "", here())

    @property
    def runs_here(self) -> bool:
        """It is another process on this machine, and has not ended."""
        own = self.place == here() and process_started(self.pid) == self.started
        return own and self != Process.this()


class InUse(UsageError):
    """Another process on this machine mirrors the run to the same target."""


class TakenOver(Exception):
    """Another process mirrors the run to the same target by now."""


class Mirror:
    """One run and one target; `path` is the file that tells how far they have come.

    UsageError if that file is another run's, or damaged; InUse.
    """

    def __init__(
        self, folder: RunFolder, target: Target, path: Path, say: Callable[[str], None]
    ) -> None:
        self._folder, self._target, self._path, self._say = folder, target, path, say
        self._run, self._by = created_of(folder), Process.this()
        self._kept: Mapping[str, Any] = {"position": asdict(Position()), "target": {}}
        self._failing = False
        if path.exists():
            self._kept = self._read()
            if (other := _PROCESS.validate_python(self._kept["by"])).runs_here:
                raise InUse(
                    f"run {folder.name}: process {other.pid} mirrors it to {path.stem} already",
                    "end that one first, or leave it to it",
                )
        self._restore()
        if not self._kept["target"]:
            self._kept = {**self._kept, "target": finite_or_word(target.state())}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write(self._kept)

    def look(self) -> bool:
        """Show what the journal has gained; whether it was anything. What fails is told once and
        comes again at the next look. TakenOver if this process is to leave.
        """
        self._refuse_if_taken()
        try:
            moved = False
            for record in self._follower.new():
                self._target.take(record)
                moved = True
            self._target.look_ends()
            self._keep()
        except (OSError, ValueError) as error:
            if not self._failing:
                self._say(f"{error}; it is tried again")
            self._failing = True
            self._restore()
            return False
        if self._failing:
            self._say("it works again")
        self._failing = False
        return moved

    def end(self, exit_code: int | None) -> None:
        """Training has ended, as its supervisor says: what it wrote last, and then its end."""
        self.look()
        self._target.training_ended(exit_code)
        self.look()

    def _keep(self) -> None:
        now = {"position": asdict(self._follower.position), "target": self._target.state()}
        now = finite_or_word(now)
        if any(now[part] != self._kept[part] for part in now):
            self._write(now)

    def _write(self, what: Mapping[str, Any]) -> None:
        body = {"format": FORMAT, "run": self._run, "by": asdict(self._by)}
        write_json(self._path, body | {part: what[part] for part in ("position", "target")})
        self._kept = what

    def _restore(self) -> None:
        try:
            position = _POSITION.validate_python(self._kept["position"])
            self._target.restore(self._kept["target"])
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged(self._path, type(error).__name__) from error
        self._follower = JournalFollower(self._folder, position)

    def _read(self) -> dict[str, Any]:
        body = read_object(self._path)
        if {"format", "run", "by", "position", "target"} - body.keys():
            raise _damaged(self._path, "parts of it are missing")
        if body["run"] != self._run:
            raise UsageError(
                f"{self._path}: tells of another run than {self._folder.name}",
                "give this one another folder with --out, or remove that one",
            )
        return body

    def _refuse_if_taken(self) -> None:
        try:
            by = _PROCESS.validate_python(read_object(self._path)["by"])
        except (OSError, ValueError, KeyError):
            return  # out of reach for now, or removed: told where it is written
        if by != self._by:
            raise TakenOver(f"process {by.pid} on {by.place.host} mirrors this run now")


_POSITION = TypeAdapter(Position)
_PROCESS = TypeAdapter(Process)


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path}: not what a mirror writes ({why})",
        "remove it with what lies beside it: the mirror is then made anew from the journal",
    )
