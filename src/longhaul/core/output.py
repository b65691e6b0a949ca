"""What a person who watches a run is shown. A paused terminal or a full pipe blocks whoever writes
to it, and a trainer that waits is taken for a hang; so a thread writes, drops and counts.
"""

from __future__ import annotations

import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from longhaul.core.units import Seconds

if TYPE_CHECKING:  # the `longhaul` command hears notices before it has imported records
    from longhaul.core.records import Event, StepRecord

_MOST_PENDING = 256
"""Pieces, beside what the pipe or the terminal itself holds."""
_AGAIN_AFTER_S: Seconds = 0.01
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """A text that a stranger may have written, without what a terminal would obey."""
    return _UNSEEN.sub("\ufffd", text)


class Output:
    """One file descriptor, whose `write` signal handlers and any thread may call. Who does not read
    finds what was dropped in `kept_in`.
    """

    def __init__(self, descriptor: int, kept_in: str = "") -> None:
        self.kept_in = kept_in
        self._descriptor = descriptor
        self._pieces: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        self._dropped_lines = 0
        """Counts up; `_pump` alone remembers how many it has reported."""
        threading.Thread(target=self._pump, name=f"output {descriptor}", daemon=True).start()

    def write(self, text: str | bytes) -> None:
        """Hand text over; it is dropped if too much is waiting already."""
        piece = text.encode(errors="replace") if isinstance(text, str) else text
        if self._pieces.qsize() < _MOST_PENDING:
            self._pieces.put(piece)
        else:
            self._dropped_lines += piece.count(b"\n")

    def flush(self, within_s: Seconds) -> bool:
        """Wait until all is written, but no longer than `within_s`; whether it was."""
        written = threading.Event()
        self._pieces.put(written)
        return written.wait(within_s)

    def _pump(self) -> None:
        seen = 0
        while True:
            piece = self._pieces.get()
            if isinstance(piece, bytes):
                self._send(piece)
            if (dropped := self._dropped_lines) > seen and self._pieces.empty():
                where = f"; {self.kept_in} has them" if self.kept_in else ""
                self._send(
                    f"({dropped - seen:,} lines were not shown while nobody read{where})\n".encode()
                )
                seen = dropped
            if isinstance(piece, threading.Event):
                piece.set()

    def _send(self, piece: bytes) -> None:
        while piece:
            try:
                piece = piece[os.write(self._descriptor, piece) :]
            except BlockingIOError:  # whoever shares the terminal has made it so
                time.sleep(_AGAIN_AFTER_S)
            except OSError:  # a reader that has left, or a full disk, ends nothing
                return


class Stream:
    """A text stream over the `Output` of a shown stream, for libraries that want one."""

    def __init__(self, shown: TextIO) -> None:
        self._shown = shown

    def write(self, text: str) -> int:
        """See `Output.write`."""
        write_to(self._shown, text)
        return len(text)

    def flush(self) -> None:
        """Nothing is held here."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)


_outputs: dict[int, Output] = {}


def output(descriptor: int) -> Output:
    """The writer of descriptor 1 or 2 in this process."""
    if descriptor not in _outputs:
        _outputs[descriptor] = Output(descriptor)
    return _outputs[descriptor]


def write_to(stream: TextIO, text: str) -> None:
    """Write to a standard stream without waiting; to one without a descriptor, directly."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        stream.write(text)
        return
    output(descriptor).write(text)


def keep_dropped_in(stream: TextIO, where: str) -> None:
    """Say, where lines are dropped, where they can be found."""
    with suppress(OSError, ValueError, AttributeError):
        output(stream.fileno()).kept_in = where


def flush_outputs(within_s: Seconds) -> None:
    """Give what is written the time to be read, before the process ends."""
    deadline = time.monotonic() + within_s
    for made in tuple(_outputs.values()):
        made.flush(max(0.0, deadline - time.monotonic()))


def print_out(text: str) -> None:
    """A line of visible text on standard output."""
    write_to(sys.stdout, f"{visible(text)}\n")


def print_error(text: str) -> None:
    """A line of visible text on standard error."""
    write_to(sys.stderr, f"{visible(text)}\n")


# The threads of a process that forks are not in its child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_outputs.clear)


Say = Callable[[str], None]
"""Where a part that knows no `View` tells a person one sentence."""


class View:
    """Where a run reports what it does; this one reports nothing."""

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


def time_rows(seconds: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """(bucket, seconds, share) for every bucket that holds time, largest first."""
    total = sum(seconds.values()) or 1.0
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return [
        (bucket.replace("_", " "), f"{value:.1f} s", f"{value / total:.1%}")
        for bucket, value in ordered
    ]
