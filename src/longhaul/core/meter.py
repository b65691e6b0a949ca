"""How far a thread has come with something long, for another one that waits for it.

Who moves bytes says how many (`moved`), without knowing whether anybody counts. Who waits looks at
the count: as long as it rises, what is waited for is slow and does not hang.

Enters: bytes that were moved. Leaves: their sum, to whichever meter the thread has opened.
Never knows: what is moved, or what follows from its going on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from longhaul.core.units import Bytes


class Meter:
    """A sum of bytes; one thread adds, others read."""

    def __init__(self) -> None:
        self.total: Bytes = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Add what this thread moves in the body."""
        token = _OPEN.set(self)
        try:
            yield
        finally:
            _OPEN.reset(token)


_OPEN: ContextVar[Meter | None] = ContextVar("meter", default=None)


def moved(size: Bytes) -> None:
    """Say that so many bytes have been written, or read."""
    meter = _OPEN.get()
    if meter is not None:
        meter.total += size
