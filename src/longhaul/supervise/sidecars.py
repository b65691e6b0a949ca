"""Processes beside a run that its supervisor starts and forgets: nothing of them reaches training.

Each is a command that reads the run's journal. Its standard input ends with the supervisor, who
writes the run's exit code there first; what it prints is told once in the run's log.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.folder import RunFolder

_AGAIN_AFTER_S: Seconds = 600.0
"""One that has died is started again after so long; its mirror goes on where it stopped."""
_LEAVES_WITHIN_S: Seconds = 5.0
"""So long the supervisor's own end waits for the last words of sidecars, all together."""
_MOST_BYTES: Bytes = 65_536
_MOST_LINES = 500
"""Told by all sidecars of a supervisor; each has a log for what is beyond."""
_WRONG = (ExitCode.FINISHED, ExitCode.RECIPE_WRONG)
"""To start it again would change nothing: it has left on purpose, or has said what is wrong."""


Kind = Literal["tensorboard", "wandb", "prometheus", "alert"]


@dataclass(frozen=True)
class Sidecar:
    """What is to be started."""

    name: str
    """For people."""
    command: tuple[str, ...]
    log: Path
    """Takes its standard error."""


def sidecars_of(settings: Recipe, folder: RunFolder) -> tuple[Sidecar, ...]:
    """What the supervisor of a run starts beside it."""
    kinds: list[Kind] = [*dict.fromkeys(settings.monitor.trackers)]
    if settings.monitor.metrics_port:
        kinds.append("prometheus")
    if settings.alert.command or settings.alert.webhook:
        kinds.append("alert")
    path = str(folder.path.resolve())
    words = (sys.executable, "-m", "longhaul", "mirror", path, "--supervised", "--to")
    return tuple(
        Sidecar(f"mirror to {kind}" if kind != "alert" else "alert", (*words, kind),
                folder.trackers / f"{kind}.log")
        for kind in kinds
    )  # fmt: skip


class Sidecars:
    """The sidecars of one supervisor. None of its methods raises, waits or takes long, but for
    leaving the body of `with`, which gives them a few seconds.
    """

    def __init__(self, wanted: Sequence[Sidecar], clock: Clock) -> None:
        self._clock = clock
        self._due = dict.fromkeys(wanted, 0.0)
        """When those that are not there are started."""
        self._there: dict[Sidecar, subprocess.Popen[bytes]] = {}
        self._said: dict[Sidecar, bytes] = {}
        """A line that has no end yet."""
        self._told: set[str] = set()
        self._exit_code: int | None = None

    def __enter__(self) -> "Sidecars":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, LonghaulError | SystemExit):
            code = error.exit_code if isinstance(error, LonghaulError) else error.code
            self._exit_code = code if isinstance(code, int) else ExitCode.FAILED
        elif error is not None:
            self._exit_code = ExitCode.FAILED
        for process in self._there.values():
            self._let_go(process)
        deadline = self._clock.monotonic() + _LEAVES_WITHIN_S
        for process in self._there.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - self._clock.monotonic()))
            _close(process)

    def ended_with(self, code: ExitCode) -> ExitCode:
        """The run's exit code, which the sidecars are told in the end; the same."""
        self._exit_code = code
        return code

    def descriptors(self) -> tuple[int, ...]:
        """Which no worker may hold, or sidecars would not see that the supervisor has died."""
        ends = (end for p in self._there.values() for end in (p.stdin, p.stdout))
        return tuple(end.fileno() for end in ends if end is not None and not end.closed)

    def look(self) -> list[str]:
        """Start those that are due; what any of them has to say that is new, a line each."""
        new = [line for line in dict.fromkeys(self._look()) if line not in self._told]
        new = new[: _MOST_LINES - len(self._told)]
        self._told |= set(new)
        return new

    def _look(self) -> list[str]:
        lines: list[str] = []
        now = self._clock.monotonic()
        for sidecar in [one for one, due in self._due.items() if due <= now]:
            del self._due[sidecar]
            try:
                self._there[sidecar] = _started(sidecar)
            except OSError as error:
                lines.append(f"{sidecar.name}: cannot be started ({error.strerror})")
                self._due[sidecar] = now + _AGAIN_AFTER_S
        for sidecar, process in list(self._there.items()):
            lines += [f"{sidecar.name}: {line}" for line in self._heard(sidecar, process)]
            code = process.poll()
            if code is not None:
                lines += [f"{sidecar.name}: {line}" for line in self._heard(sidecar, process)]
                del self._there[sidecar]
                _close(process)
                if code not in _WRONG:
                    lines.append(f"{sidecar.name}: ended with {code}; its log is {sidecar.log}")
                    self._due[sidecar] = now + _AGAIN_AFTER_S
        return lines

    def _heard(self, sidecar: Sidecar, process: "subprocess.Popen[bytes]") -> list[str]:
        assert process.stdout is not None
        came = self._said.pop(sidecar, b"")
        with suppress(BlockingIOError, OSError):
            came += os.read(process.stdout.fileno(), _MOST_BYTES)
        *whole, rest = came.split(b"\n")
        self._said[sidecar] = rest[-_MOST_BYTES:]
        return [line.decode(errors="replace") for line in whole if line.strip()]

    def _let_go(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        if self._exit_code is not None:
            with suppress(OSError):
                os.write(process.stdin.fileno(), b"%d\n" % self._exit_code)
        with suppress(OSError):
            process.stdin.close()


def _started(sidecar: Sidecar) -> "subprocess.Popen[bytes]":
    sidecar.log.parent.mkdir(parents=True, exist_ok=True)
    with sidecar.log.open("ab") as log:
        # In a session of its own: a terminal's Ctrl-C is not meant for it.
        process = subprocess.Popen(
            sidecar.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    for end in (process.stdin, process.stdout):
        os.set_blocking(end.fileno(), False)
    return process


def _close(process: "subprocess.Popen[bytes]") -> None:
    for end in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError):
            end.close()
