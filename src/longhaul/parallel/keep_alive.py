"""Waiting for something slow on rank 0 while the other ranks wait in a collective.

A collective that nobody joins in time fails on all ranks; a store may take longer than that. So the
slow part is done on a thread, and the others are told again and again that it goes on.

Enters: an iterator that may take long for each item, the channel of the ranks. Leaves: its items.
Never knows: what they are.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from longhaul.core.units import Seconds
from longhaul.parallel.control import Control

Item = TypeVar("Item")

STILL_AT_IT = "still at it"
"""What the other ranks are told; they ask again (`told`)."""
_WORD_EVERY_S: Seconds = 1.0


def patiently(items: Iterable[Item], control: Control | None) -> Iterator[Item]:
    """The items; while one is waited for, the other ranks are kept waiting by `told`."""
    if control is None:
        yield from items
        return
    iterator = iter(items)
    while True:
        box: list[Item] = []
        errors: list[BaseException] = []
        thread = threading.Thread(target=_take, args=(iterator, box, errors), daemon=True)
        thread.start()
        thread.join(_WORD_EVERY_S)
        while thread.is_alive():
            control.share(STILL_AT_IT)
            thread.join(_WORD_EVERY_S)
        if errors:
            raise errors[0]
        if not box:
            return
        yield box[0]


def told(control: Control) -> Any:
    """What rank 0 shares, once it has come to it; on every other rank."""
    value: Any = STILL_AT_IT
    while value == STILL_AT_IT:
        value = control.share()
    return value


def _take(iterator: Iterator[Item], box: list[Item], errors: list[BaseException]) -> None:
    try:
        box.extend(item for item in (next(iterator, None),) if item is not None)
    except BaseException as error:  # noqa: BLE001 (raised again where it is waited for)
        errors.append(error)
