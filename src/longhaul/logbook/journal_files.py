"""Names of journal files.

`000003.pilot.jsonl` holds the steps of attempt 3, `000003.pilot.events.jsonl` its events and
decisions, `000003-0002.pilot.jsonl` the steps after the first file grew too large. Events and
decisions lie apart because they are few: a restart reads all of them, and no gigabyte of steps.

Enters: a folder. Leaves: its journal files in order. Never knows: what is in them.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.strict import entries_of

_NAME = re.compile(
    r"(?P<attempt>\d{6,18})(-(?P<rotation>\d{4,18}))?\.(?P<author>[a-z][a-z0-9_-]*)"
    r"(?P<events>\.events)?\.jsonl",
    re.ASCII,
)


@dataclass(frozen=True, order=True)
class JournalFile:
    """What a journal file's name says; ordered by attempt, then rotation."""

    attempt: int
    rotation: int
    """1 for the first file of an attempt, author and kind."""
    author: str
    """Who writes it: `pilot` or `supervisor`."""
    events: bool
    """Events and decisions, not steps."""

    @property
    def name(self) -> str:
        """The file's name."""
        rotation = f"-{self.rotation:04d}" if self.rotation > 1 else ""
        kind = ".events" if self.events else ""
        return f"{self.attempt:06d}{rotation}.{self.author}{kind}.jsonl"

    @classmethod
    def parse(cls, name: str) -> "JournalFile | None":
        """What `name` says; None if it is no journal file."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        file = cls(
            attempt=int(match["attempt"]),
            rotation=int(match["rotation"] or 1),
            author=match["author"],
            events=match["events"] is not None,
        )
        return file if file.name == name else None


def journal_files(journal: Path) -> list[JournalFile]:
    """The journal files in a folder, in order; none if the folder does not exist."""
    names = entries_of(journal)
    return sorted(file for name in names if (file := JournalFile.parse(name)))
