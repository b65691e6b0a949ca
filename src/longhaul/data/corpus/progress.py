"""How far a stage over a corpus is: documents and MB a second, and when it will end."""

from longhaul.core.clocks import RealClock
from longhaul.core.output import Say
from longhaul.core.units import Bytes, Seconds, short_bytes, short_seconds

_EVERY_S = 10.0


class CorpusProgress:
    """Says how far a stage is, at most every ten seconds."""

    def __init__(self, say: Say, stage: str, total: Bytes) -> None:
        self._say = say
        self._stage = stage
        self._total = total
        self._left = total
        self._documents = 0
        self._text: Bytes = 0
        self._work: Bytes = 0
        self._clock = RealClock()
        self._began = self._last = self._clock.monotonic()

    def begin_at(self, done: Bytes) -> None:
        """So much of the total was done before."""
        self._left = self._total - done

    def done(self, work: Bytes, documents: int, text: Bytes) -> None:
        """One more job: so much of the total, and what came of it."""
        self._work += work
        self._left -= work
        self._documents += documents
        self._text += text
        now = self._clock.monotonic()
        if now - self._last >= _EVERY_S and self._left > 0:
            self._last = now
            self._say(f"{self._stage}: {self._so_far(now)}")

    def _so_far(self, now: Seconds) -> str:
        seconds = max(1e-9, now - self._began)
        remaining = self._left * seconds / max(1, self._work)
        share = 1 - self._left / max(1, self._total)
        return (
            f"{share:.0%}, {self._documents:,} documents ({self._documents / seconds:,.0f}/s), "
            f"{short_bytes(self._text)} of text ({short_bytes(self._text / seconds)}/s), "
            f"{short_seconds(remaining)} left"
        )

    @property
    def elapsed(self) -> Seconds:
        """Seconds since the stage began."""
        return self._clock.monotonic() - self._began
