"""What commands print, without what a terminal would obey: a stranger may have written it.

Every command prints through `text_only`, and tables through `console`; errors and the lines of
`core.output` are filtered there.

Enters: text. Leaves: it, with a mark for each character that a terminal hides or obeys.
Never knows: where the text came from.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from longhaul.core.output import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


class Shown:
    """A text stream over another one, which gets visible text only."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write what a person may see of it."""
        self.stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # typer writes to it where the terminal's encoding is ASCII
            raise AttributeError(name)
        return getattr(self.stream, name)


@contextmanager
def text_only() -> Iterator[None]:
    """Let nothing but visible text reach standard output and error."""
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    shown = {name: Shown(stream) for name, stream in streams.items() if stream is not None}
    for name, stream in shown.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in shown.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, streams[name])


def console(file: TextIO | None = None, **options: Any) -> Console:
    """Where tables and trees are printed: its own styles, and nobody else's.

    Args:
        file: instead of standard output.
        options: of rich's `Console`.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class VisibleConsole(Console):
        def render(
            self, renderable: Any, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else visible(segment.text)
                yield segment._replace(text=text)

    own: Any = sys.stdout if file is None else file
    while isinstance(own, Shown):  # the console's own styles are made of what `Shown` hides
        own = own.stream
    return VisibleConsole(file=own, highlight=False, markup=False, emoji=False, **options)
