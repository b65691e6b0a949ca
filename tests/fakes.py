"""Stand-ins that tests share: a clock that is moved by hand, a view that remembers."""

from collections.abc import Sequence

from longhaul.core.output import View
from longhaul.core.units import Seconds


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: Seconds = 1_000_000.0) -> None:
        self._now = now

    def wall(self) -> Seconds:
        """The time that was set."""
        return self._now

    def monotonic(self) -> Seconds:
        """The time that was set."""
        return self._now

    def advance(self, seconds: Seconds) -> None:
        """Let `seconds` pass."""
        self._now += seconds


class SilentView(View):
    """A view that keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Keep it."""
        self.said.append(text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Keep its title and rows."""
        self.said.append("\n".join([title, *(" ".join(row) for row in rows)]))
