"""Where hung ranks stand: their Python stacks, and NCCL's record of their collectives."""

import faulthandler
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.ranks.rank_process import RankProcess

_ENTRIES = 2000
"""Of the ring: some steps of a deep model's gatherings."""
_STEM = "collectives-"
_DEVICES = Path("/dev/nvidiactl")


def recorder_environment(
    folder: RunFolder, given: Mapping[str, str] = os.environ, devices: Path = _DEVICES
) -> dict[str, str]:
    """What lets a worker record; nothing where there is no NVIDIA device.

    torch keeps the last collectives in a ring, and writes them to a file when one times out, or
    when something is written into a named pipe of the rank's: the watchdog is earlier than NCCL's
    timeout. The files are pickles (`torchfrtrace` reads them); nothing here opens one.
    """
    if not devices.exists():
        return {}
    stem = str(folder.workers / _STEM)
    wanted = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": str(_ENTRIES),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": stem,
    }
    # torch ends a worker that cannot make its pipe, and not every file system has them.
    if _has_pipes(folder.workers):
        wanted["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = stem
    return {name: value for name, value in wanted.items() if name not in given}


def recording_path(folder: RunFolder, rank: int) -> Path:
    """Where torch writes what one rank has recorded."""
    return folder.workers / f"{_STEM}{rank}"


def forget_recording(folder: RunFolder, rank: int) -> None:
    """Remove what an earlier attempt has left."""
    path = recording_path(folder, rank)
    for left in (path, _pipe(path)):
        with suppress(OSError):
            left.unlink(missing_ok=True)


def ask_for_recordings(folder: RunFolder, ranks: Sequence[int]) -> list[Path]:
    """Let ranks write what they have recorded; the files of those that listen, there soon."""
    asked = []
    for rank in ranks:
        path = recording_path(folder, rank)
        try:
            # Nobody waits for a rank that does not listen.
            pipe = os.open(_pipe(path), os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            continue
        with suppress(OSError):
            os.write(pipe, b"1")
            asked.append(path)
        os.close(pipe)
    return asked


def _pipe(path: Path) -> Path:
    return path.with_name(f"{path.name}.pipe")


def _has_pipes(folder: Path) -> bool:
    probe = folder / f"{_STEM}probe.pipe"
    try:
        probe.unlink(missing_ok=True)
        os.mkfifo(probe)
        probe.unlink()
    except OSError:
        return False
    return True


STACKS_SIGNAL = signal.SIGQUIT
_LOOK_EVERY_S: Seconds = 0.02
_WITHIN_S: Seconds = 2.0
_TOP = 4
"""A rank waits for others if one of the innermost frames belongs to torch.distributed."""
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.M)
"""File, line and name of a function."""


def answer_for_stacks(folder: RunFolder, rank: int) -> IO[str]:
    """Let this process write its stacks when asked; the file must stay open."""
    try:
        file = stacks_path(folder, rank).open("w", encoding="utf-8")
    except OSError:  # a full disk: then nobody can say where it stands
        file = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (it stays open)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
    return file


def stacks_path(folder: RunFolder, rank: int) -> Path:
    """Where the stacks of one rank are written."""
    return folder.workers / f"{rank}.stacks"


def take_stacks(folder: RunFolder, workers: Sequence[RankProcess]) -> dict[int, str | None]:
    """Ask all workers for their stacks.

    Every worker has `faulthandler` write the stacks of all its threads into `workers/RANK.stacks`
    when SIGQUIT comes; that works in the middle of a C call, but not in a process that is stopped.
    Of a rank that does not answer py-spy, where it is installed, writes the stacks from outside,
    down to C, into `workers/RANK.native`. With NCCL each rank's collectives are written too.

    Returns rank → where it waits for others, empty if it does something else, None if it gave none.
    """
    asked = {worker.rank: stacks_path(folder, worker.rank) for worker in workers}
    for worker in workers:
        # A process that has not said that it would answer would die of the signal.
        if asked[worker.rank].exists():
            worker.send(STACKS_SIGNAL)
    recordings = ask_for_recordings(folder, [*asked])
    deadline, sizes = time.monotonic() + _WITHIN_S, dict.fromkeys(asked, 0)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        before, sizes = sizes, {rank: _size(path) for rank, path in asked.items()}
        if all(sizes.values()) and sizes == before and all(map(_size, recordings)):
            break
    waiting = {rank: waiting_in(_text(path)) for rank, path in asked.items()}
    for worker in workers:
        if waiting[worker.rank] is None:
            look_from_outside(worker.pid, folder.workers / f"{worker.rank}.native", _WITHIN_S)
    return waiting


def look_from_outside(pid: int, path: Path, most_s: Seconds) -> None:
    """Have py-spy write the stacks of a process, where it is installed and may."""
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(
            ["py-spy", "dump", "--native", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=most_s,
            check=True,
        )
        path.write_bytes(ended.stdout)


def waiting_in(stacks: str) -> str | None:
    """Where the main thread waits for other ranks: the innermost frame outside of torch's
    machinery. Empty if it does something else; None if there are no stacks.
    """
    threads = [_FRAME.findall(text) for text in re.split(r"^.*hread 0x.*$", stacks, flags=re.M)]
    main = next(filter(None, reversed(threads)), None)
    if main is None:
        return None
    if not any("torch/distributed/" in file for file, _, _ in main[:_TOP]):
        return ""
    file, line, name = next(frame for frame in main if "torch/distributed/" in frame[0])
    return f"{name} ({Path(file).name}:{line})"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
