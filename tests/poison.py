"""Steps that read some draws are spoiled: in training as in replays of this process."""

from collections.abc import Callable, Collection
from typing import Any

from longhaul.core.faults import HANDLERS, Point

Spared = Callable[[Any], bool]


def poison(
    draws: Collection[int],
    spared: Spared = lambda batch: False,
    register: Callable[[dict[Point, list[Any]], Point, list[Any]], None] = dict.__setitem__,
) -> None:
    """Have the losses of batches that begin with these draws be no number.

    Args:
        draws: first blocks of the batches.
        spared: asked for each of those whether it is left as it is.
        register: sets handlers; `monkeypatch.setitem` takes them away again.
    """
    poisoned = [False]

    def begin(batch: Any, **context: Any) -> None:
        poisoned[0] = batch.draw in draws and not spared(batch)

    def lose(loss: Any, **context: Any) -> Any:
        return loss * float("nan") if poisoned[0] else loss

    register(HANDLERS, Point.BATCH, [begin])
    register(HANDLERS, Point.LOSS, [lose])
