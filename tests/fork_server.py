"""Starts `longhaul` processes in milliseconds: a process that has imported torch forks them.

A fresh interpreter needs two to three seconds of processor time to import what a trainer needs,
which was most of what the tests of real processes took. What is forked has a session, environment,
folder and output of its own; others see its environment in `/proc`, where what a drilled run leaves
behind is looked for. It differs from a fresh one in that torch is imported already, and in that it
takes nothing apart at its end, which took as long as a short run: what depends on how a process
starts, or on how Python ends it, is tested with `subprocess`.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TextIO

_AT_START = ("CUDA_", "DNNL_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "PYTHON",
             "PYTORCH", "TORCH")  # fmt: skip
"""Environment that an interpreter or a library reads once, when it starts."""
_HEEDED = "PYTHONPATH"
"""Of it, what a forked process heeds all the same."""
_ROOM = "LONGHAUL_TESTS_ROOM"
"""Fills the server's environment, so that a forked process has room to show its own instead."""
_SHOWN = 1 << 13
_LARGEST = 1 << 17


class ForkedProcess:
    """A process as `subprocess.Popen` shows one: text on `stdout`, which standard error joins."""

    def __init__(
        self, pid: int, arguments: Sequence[str], stdout: TextIO | None, ended: int
    ) -> None:
        self.pid = pid
        self.args = list(arguments)
        self.returncode: int | None = None
        self.stdout = stdout
        self._ended = ended
        self._reader: threading.Thread | None = None
        self._text = ""

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All it prints until it has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        self._reader.join(timeout)
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        assert self.stdout is not None
        self.stdout.close()
        return self._text, None

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self) -> None:
        assert self.stdout is not None
        with suppress(ValueError):  # closed meanwhile
            self._text = self.stdout.read()

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            told = os.read(self._ended, 16)
            os.close(self._ended)
            self.returncode = int(told) if told else -signal.SIGKILL  # the server itself is gone
        return self.returncode


Process = ForkedProcess | subprocess.Popen[str]


class ForkServer:
    """The server, seen from the tests. It starts with the first process asked for."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def start(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        sink: IO[Any] | None = None,
    ) -> "Process":
        """Start `python ARGUMENTS` in a session of its own.

        Args:
            arguments: `-m MODULE …` or `SCRIPT …`.
            cwd: its folder.
            env: its whole environment. Where that differs in what is read at the start of an
                interpreter, a fresh one is started.
            sink: takes what it prints, and `stdout` is None then.
        """
        if any(os.environ.get(name) != env.get(name) for name in {*os.environ, *env} - {_HEEDED}
               if name.startswith(_AT_START)):  # fmt: skip
            return subprocess.Popen(
                [sys.executable, *arguments], cwd=cwd, env=env, text=True, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=sink or subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        if self._line is None:
            self._begin()
        assert self._line is not None
        output, written = os.pipe() if sink is None else (None, sink.fileno())
        ended, emit = os.pipe()
        asked = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}
        try:
            socket.send_fds(self._line, [json.dumps(asked).encode()], [written, emit])
        finally:
            if sink is None:
                os.close(written)
            os.close(emit)
        answer = self._line.recv(64)
        if not answer:
            raise RuntimeError("the fork server of the tests has ended")
        stdout = None if output is None else os.fdopen(output, encoding="utf-8")
        return ForkedProcess(int(answer), arguments, stdout, ended)

    def close(self) -> None:
        """End the server; what it has forked lives on."""
        if self._line is not None and self._server is not None:
            self._line.close()
            self._server.wait()

    def _begin(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._line, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST * 4)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, start_new_session=True,
                env=os.environ | {_ROOM: "." * _SHOWN},
            )  # fmt: skip


_IMPORTED = (
    "longhaul.cli.progress",
    "longhaul.run.train.follower", "longhaul.run.train.launch", "longhaul.run.train.run_attempt",
    "longhaul.run.train.worker", "longhaul.supervise.nodes.fleet", "longhaul.train.trainer",
    "longhaul.train.witness", "longhaul.data.subwords",
    "longhaul.parallel.parallelize", "longhaul.checkpoint.storage", "torch._dynamo.convert_frame",
    "importlib.readers", "multiprocessing.popen_fork", "numpy.fft", "numpy.ma", "numpy.random",
    "pydantic.dataclasses", "rich.console", "rich.markup",
)  # fmt: skip
"""What a command, its supervisor, a worker and a rank of several import."""


def _import_all() -> None:
    from longhaul.cli.entry import application
    from longhaul.core.machine import installed_packages

    application()
    for module in _IMPORTED:
        importlib.import_module(module)
    installed_packages()
    for made in tuple(weakref.finalize._registry):  # type: ignore[attr-defined]
        made.atexit = False  # torch would unregister its operators in every process
    gc.collect()
    gc.freeze()  # what is shared stays shared


def _serve(line: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for, tell how it ends; returns in each child, with what it is to do."""
    children: dict[int, tuple[int, int]] = {}  # by descriptor of the process: pid, where to tell
    while True:
        ready, _, _ = select.select([line, *children], [], [])
        for descriptor in ready:
            if descriptor is line:
                message, (written, emit), _, _ = _received(line)
                if not message:
                    return None
                pid = os.fork()
                if pid == 0:
                    os.dup2(written, 1)
                    os.dup2(written, 2)
                    return dict(json.loads(message))
                os.close(written)
                children[os.pidfd_open(pid)] = pid, emit
                line.send(str(pid).encode())
            else:
                pid, emit = children.pop(descriptor)
                _, status = os.waitpid(pid, 0)
                os.close(descriptor)
                with suppress(BrokenPipeError):
                    os.write(emit, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(emit)


def _received(line: socket.socket) -> tuple[bytes, list[int], int, Any]:
    message, descriptors, flags, address = socket.recv_fds(line, _LARGEST, 2)
    return message, descriptors or [-1, -1], flags, address


def _become(asked: dict[str, Any]) -> None:
    """The process that was asked for; ends as an interpreter does."""
    os.setsid()
    os.closerange(3, 1024)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    _show(asked["env"])
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1,  # noqa: SIM115
                      closefd=False)  # fmt: skip
    arguments = asked["arguments"]
    code: object = None
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            named = asked["env"].get(_HEEDED, "").split(os.pathsep)
            sys.path[:1] = [asked["cwd"], *(folder for folder in named if folder)]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path[0] = str(Path(arguments[0]).parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code
    if code is None or isinstance(code, int):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(str(code))


def _show(environment: dict[str, str]) -> None:
    """Where `/proc/PID/environ` reads: what the process was begun with still lies there."""
    begin, end = (
        int(word) for word in Path("/proc/self/stat").read_text().split(")")[-1].split()[47:49]
    )
    told = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    assert len(told) < end - begin, "the environment has grown too large to be shown"
    ctypes.memmove(begin, told.ljust(end - begin, b"\0"), end - begin)


SERVER = ForkServer()
"""Of this worker of pytest."""


class Forking:
    """Stands in for `subprocess` where the program itself starts a `longhaul` command."""

    DEVNULL, STDOUT = subprocess.DEVNULL, subprocess.STDOUT
    TimeoutExpired = subprocess.TimeoutExpired

    @staticmethod
    def Popen(
        command: Sequence[str], *, stdout: IO[Any], env: Mapping[str, str], **_: Any
    ) -> Process:
        """Fork it instead."""
        return SERVER.start(command[1:], Path.cwd(), env, stdout)


_THREADS = "OMP_NUM_THREADS"


class ForkingRanks(Forking):
    """Stands in for `subprocess` where ranks are started that set their number of threads."""

    @staticmethod
    def Popen(
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdout: IO[Any] | None = None,
        **more: Any,
    ) -> Any:
        """Fork it instead, unless it is a program in a word."""
        if command[1] == "-c":
            return subprocess.Popen(command, env=env, cwd=cwd, stdout=stdout, **more)
        own = {name: value for name, value in env.items() if name != _THREADS}
        if _THREADS in os.environ:
            own[_THREADS] = os.environ[_THREADS]
        if stdout is not None:
            return SERVER.start(command[1:], cwd or Path.cwd(), own, stdout)
        with os.fdopen(os.dup(2), "wb") as ours:
            return SERVER.start(command[1:], cwd or Path.cwd(), own, ours)


if __name__ == "__main__":
    _import_all()
    with socket.socket(fileno=int(sys.argv[1])) as its_line:
        its_task = _serve(its_line)
    if its_task is not None:
        _become(its_task)
