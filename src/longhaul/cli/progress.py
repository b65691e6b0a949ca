"""What a person sees while a run trains: a live line on a terminal, plain lines in a pipe."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

from longhaul.cli.common import console
from longhaul.core.events import EventKind
from longhaul.core.output import Stream, View, keep_dropped_in, print_out
from longhaul.core.records import Event, StepRecord
from longhaul.core.units import short_count, short_seconds
from longhaul.logbook.description import event_line
from longhaul.monitor.throughput import Throughput

_PIPE_INTERVAL_S = 5.0
_GAP = "  "
_SPARED = ("grad", "lr", "tokens/s", "loss")
"""Which figures of the live line are left out first where a terminal is too narrow for all."""


class TerminalView(View):
    """Prints what a run reports, to `log` too as plain lines."""

    def __init__(self, log: Path | None = None) -> None:
        self._console = console(cast(TextIO, Stream(sys.stdout)), soft_wrap=True)
        self._log = log
        if log is not None:
            keep_dropped_in(sys.stdout, str(log))
        self._live: Any = None
        self._total: int | None = None
        self._printed = 0.0
        self._throughput = Throughput()

    def say(self, text: str) -> None:
        """One sentence, above the live line."""
        self._write_down(text)
        self._console.print(text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Rows of text under a title; figures to the right."""
        width, *widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        lines = [title] if title else []
        for first, *others in [columns, *rows]:
            right = [cell.rjust(size) for cell, size in zip(others, widths, strict=True)]
            lines.append("  " + "  ".join([first.ljust(width), *right]).rstrip())
        self.say("\n".join(lines))

    def begin(self, step: int, total_steps: int | None) -> None:
        """Training begins at `step`."""
        self._total = total_steps
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def show(self, record: StepRecord | Event) -> None:
        """A record that was just journalled."""
        if isinstance(record, StepRecord):
            self._show_step(record)
        elif record.kind == EventKind.COMPILED and record.data.get("message"):
            self.say(f"step {record.step:>6}  WARNING: {record.data['message']}")
        elif record.kind in (EventKind.EVALUATION, EventKind.COMPILED):
            self.say(f"step {record.step:>6}  {event_line(record)}")
        elif record.kind == EventKind.CHECKPOINT_FAILED:
            self.say(f"WARNING: {record.data.get('message', 'a checkpoint was not saved')}")

    def end(self) -> None:
        """Close the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show_step(self, record: StepRecord) -> None:
        self._throughput.see(record)
        line = self._line(record)
        if record.masked:
            self.say(f"step {record.step:>6}  update held back: loss or gradient is not finite")
        if self._live is not None:
            self._live.update(fitted(line, self._console.width))
        if (now := time.monotonic()) - self._printed >= _PIPE_INTERVAL_S:
            self._printed = now
            self._write_down(line)
            if self._live is None:
                print_out(line)

    def _write_down(self, text: str) -> None:
        if self._log is not None:
            with suppress(OSError), self._log.open("a", encoding="utf-8") as log:
                log.write(f"{text}\n")

    def _line(self, record: StepRecord) -> str:
        rate = self._throughput.tokens_per_second
        of = f"/{self._total}" if self._total else ""
        parts = [
            f"step {record.step:>6}{of}",
            f"loss {record.loss:.4f}",
            f"lr {record.learning_rate:.2e}",
            f"grad {record.gradient_norm:.2f}",
            f"{short_count(rate)} tokens/s",
        ]
        if self._total and rate:
            left = (self._total - record.step) * self._throughput.seconds_per_step
            parts.append(f"ETA {short_seconds(left)}")
        return _GAP.join(parts)


def fitted(line: str, width: int) -> str:
    """A live line without its least figures, as far as it must be to fit into `width` columns."""
    parts = line.split(_GAP)
    for spared in _SPARED:
        if len(line) <= width:
            break
        parts = [part for part in parts if spared not in part]
        line = _GAP.join(parts)
    return line
