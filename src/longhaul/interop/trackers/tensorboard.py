"""A run as TensorBoard's event files, written by tensorboard's own writer, without TensorFlow."""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic import TypeAdapter

from longhaul.interop.trackers.series import Tracker, Values

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

_STORY = "story"
_NAME = re.compile(r".*/events\.out\.tfevents\.(\d{10})\.longhaul", re.DOTALL)
_SELDOM = "validation/"
"""Names of figures that come seldom, and would stay wrong for long."""
_MOST_SELDOM = 64
"""Of each so many values are kept, to go back to."""


class EventFiles(Tracker):
    """Figures in `folder`, by step; in its run `story` what happened, by line, as a rollback takes
    figures back and not what led to it.

    Every start, and every rollback, is marked by a session that begins at a step: readers drop what
    files hold from that step on. So nothing stands there twice, whenever a writer was killed.
    TensorBoard's fast loader (tensorboard-data-server) passes over that mark; it drops a figure's
    values from a step on when that figure is written at that step or before it. So of evaluations,
    which come seldom, a rollback writes the last value that counts once more.
    """

    def __init__(self, folder: Path) -> None:
        self._figures, self._story = _EventFile(folder), _EventFile(folder / _STORY)
        self._step = self._lines = 0
        self._seldom: dict[str, list[tuple[int, float, float]]] = {}
        """Name → (step, time, value) of the last ones."""

    def values(self, step: int, time: float, values: Values) -> None:
        """See `Tracker`."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        shown = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._figures.write(self._step, _event(step, time, summary=Summary(value=shown)))
        self._step = max(self._step, step)
        for name in filter(lambda name: name.startswith(_SELDOM), values):
            known = self._seldom.get(name, [])
            self._seldom[name] = [*known, (step, time, values[name])][-_MOST_SELDOM:]

    def text(self, step: int, time: float, line: str) -> None:
        """See `Tracker`."""
        self._tell("story", time, line)

    def settings(self, time: float, settings: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        shown = json.dumps(settings, indent=2, ensure_ascii=False, default=str)
        self._tell("settings", time, f"```\n{shown}\n```")

    def undo(self, step: int) -> None:
        """See `Tracker`."""
        self._figures.write(self._step, _session(step + 1))
        self._step = step
        for name, known in self._seldom.items():
            left = self._seldom[name] = [one for one in known if one[0] <= step]
            if left and len(left) < len(known):
                again, time, value = self._seldom[name].pop()
                self.values(again, time, {name: value})

    def flush(self) -> None:
        """See `Tracker`."""
        self._figures.flush()
        self._story.flush()

    def close(self) -> None:
        """See `Tracker`."""
        self._figures.close()
        self._story.close()

    def state(self) -> Mapping[str, Any]:
        """See `Tracker`."""
        return {
            "step": self._step, "lines": self._lines, "seldom": self._seldom,
            "files": [self._figures.number, self._story.number],
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        for file, number in zip((self._figures, self._story), state.get("files", ()), strict=False):
            file.go_back(int(number))
        self._step, self._lines = int(state.get("step", 0)), int(state.get("lines", 0))
        self._seldom = _SELDOM_VALUES.validate_python(state.get("seldom", {}))

    def _tell(self, tag: str, time: float, line: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb

        text: Iterable[Summary.Value] = text_pb(tag, line).value
        self._story.write(self._lines, _event(self._lines + 1, time, summary=Summary(value=text)))
        self._lines += 1


class _EventFile:
    """The newest event file of a TensorBoard run; begun with the first event."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._highest = 0
        """Number that no later file may have: a reader may know one that was removed."""
        self.number = max(self._there(), default=0)
        """Of the newest file."""
        self._flushed = 0
        """Bytes that are known to be whole."""

    def write(self, last: int, event: "Event") -> None:
        """Append an event; `last` is the last step that was shown before."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is None:
            # By number: TensorBoard reads files by name, and a clock may be set back.
            self._folder.mkdir(parents=True, exist_ok=True)
            self._highest = 1 + max(self._highest, *self._there(), 0)
            path = self._folder / f"events.out.tfevents.{self._highest:010d}.longhaul"
            self._file, self.number, self._flushed = path.open("xb"), self._highest, 0
            first = [_event(0, event.wall_time, file_version="brain.Event:2"), _session(last + 1)]
        else:
            first = []
        writer = RecordWriter(self._file)
        for one in [*first, event]:
            writer.write(one.SerializeToString())

    def flush(self) -> None:
        """Hand over what was written."""
        if self._file is not None:
            self._file.flush()
            self._flushed = self._file.tell()

    def go_back(self, number: int) -> None:
        """Remove the files after that one: what they hold comes again. Else a disk on which only
        some writes succeed would gather one at every try.
        """
        self.close()
        for newer, path in self._there().items():
            self._highest = max(self._highest, newer)
            if newer > number:
                path.unlink(missing_ok=True)
        self.number = number

    def _there(self) -> dict[int, Path]:
        found = map(_NAME.fullmatch, map(str, self._folder.glob("events.*")))
        return {int(match[1]): Path(match[0]) for match in found if match}

    def close(self) -> None:
        """End this file after what was flushed; the next event begins another one."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with suppress(OSError):
            file.close()  # on a full disk it cannot even be closed in order
        with suppress(OSError):
            path = Path(file.name)
            if self._flushed:
                with path.open("r+b") as again:
                    again.truncate(self._flushed)
            else:
                path.unlink()


_SELDOM_VALUES = TypeAdapter(dict[str, list[tuple[int, float, float]]])


def _event(step: int, time: float, **what: Any) -> "Event":
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=time, step=step, **what)


def _session(step: int) -> "Event":
    """The mark that all steps from this one on are made anew."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    return _event(step, 0.0, session_log=SessionLog(status=SessionLog.START))
