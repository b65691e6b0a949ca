"""The heap of a process that trains: freed memory is kept, what imports make not collected."""

import atexit
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from longhaul.core.units import Bytes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT: Bytes = 2**31 - 1
_MAPPED_FROM: Bytes = 32 << 20
"""The most that glibc lets its own threshold grow to."""


def keep_freed_memory() -> None:
    """Have glibc keep what is freed instead of handing it back to the system; nothing elsewhere.

    A step on a CPU frees what the next one takes: each time the pages come back one fault at a
    time, filled with zeros. Tensors of 32 MiB or more still come and go as mappings of their own,
    so that the heap is not torn to pieces by them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def reserve(size: Bytes) -> None:
    """Have the heap hold so much that is free and mapped already, where freed memory is kept.

    Who keeps many small things between large ones that come and go takes the place of the large
    ones, which then pay for new pages each time.
    """
    piece = _MAPPED_FROM // 2
    pieces = [b"\1" * piece for _ in range(size // piece)]  # all at once, or it were one piece
    del pieces


@contextmanager
def importing() -> Iterator[None]:
    """Imports in the body: torch makes half a million objects that stay, and searching them for
    garbage again and again takes an eighth of its import. No later search looks at them either, so
    that a fork goes on sharing their pages.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # what ends in order looks for what it has not let go of
        if was_enabled:
            gc.enable()
