"""What a person watching a run is shown; the command line supplies one.

Enters: sentences and records. Leaves: nothing. Never knows: who watches.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from longhaul.core.records import Event, StepRecord


class View(Protocol):
    """Where a run tells what it does."""

    def say(self, text: str) -> None:
        """One sentence."""

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Rows of text under a title."""

    def begin(self, step: int, total_steps: int | None) -> None:
        """Training begins at `step`."""

    def show(self, record: StepRecord | Event) -> None:
        """A record that was just journalled."""

    def end(self) -> None:
        """Training is over; close what is live."""


class SilentView:
    """A view for tests and tools: keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Keep it."""
        self.said.append(text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Keep its title and rows."""
        self.said.append("\n".join([title, *(" ".join(row) for row in rows)]))

    def begin(self, step: int, total_steps: int | None) -> None:
        """Nothing to open."""

    def show(self, record: StepRecord | Event) -> None:
        """Records are in the journal already."""

    def end(self) -> None:
        """Nothing to close."""


def time_rows(seconds: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """(bucket, seconds, share) for every bucket that holds time, largest first."""
    total = sum(seconds.values()) or 1.0
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return [
        (bucket.replace("_", " "), f"{value:.1f} s", f"{value / total:.1%}")
        for bucket, value in ordered
    ]
