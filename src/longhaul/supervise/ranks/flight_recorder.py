"""NCCL's flight recorder: which collectives each rank has begun and ended, written out on a hang.

torch keeps the last ones in a ring when its environment says so, and writes them to a file when a
collective times out, or when something is written into a named pipe of the rank's. The watchdog is
earlier than NCCL's timeout, so the pipe is what it uses. The files are pickles of torch's own
format (`torchfrtrace` reads them); nothing here opens one.

Enters: a run's folder, ranks. Leaves: a worker's environment; files in `workers/`.
Never knows: torch.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from longhaul.logbook.folder import RunFolder

_ENTRIES = 2000
"""Of the ring: some steps of a deep model's gatherings."""
_STEM = "collectives-"
_DEVICES = Path("/dev/nvidiactl")


def recorder_environment(
    folder: RunFolder, given: Mapping[str, str] = os.environ, devices: Path = _DEVICES
) -> dict[str, str]:
    """What lets a worker record; nothing where there is no NVIDIA device.

    Args:
        folder: whose `workers/` is there.
        given: what the user has set wins.
        devices: is there if the driver is.
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
    """Let ranks write what they have recorded.

    Returns:
        Files that will be there soon, of the ranks that listen.
    """
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
