"""What a folder's medium does: throughput, small files, metadata, fsync, several writers, and the
remote tier. Nothing is left behind.
"""

import hashlib
import os
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from longhaul.cluster.qualify.records import Measurement
from longhaul.core.addresses import without_secrets
from longhaul.core.errors import LonghaulError
from longhaul.core.faults import Point, point
from longhaul.core.units import Bytes, Seconds, short_bytes
from longhaul.store.manifest import FileEntry
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import Patience
from longhaul.supervise.nodes.qualify import Unfit, check_folder

_PIECE: Bytes = 8 << 20
"""Written and fsynced at once."""
_SMALL: Bytes = 4096
_WRITERS = 4
SENT: Bytes = 1 << 20
"""To a remote place and back."""
_PATIENCE = Patience(answer_s=15.0)
"""A store that is well answers within a second; a person waits for this one."""
NEEDED: Bytes = 1 << 30
"""Free space without which not even a small checkpoint and its journal fit."""


def storage(
    folder: Path, *, quick: bool, checkpoint: Bytes = 0, free_wanted: Bytes = NEEDED
) -> list[Measurement]:
    """All figures of a folder. `checkpoint`: size of the recipe's, 0 without a recipe."""
    where = str(folder)
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [_of("space", where, None, "B", f"{folder} cannot be used ({error.strerror})")]
    wanted = max(free_wanted, 2 * checkpoint)
    space = ""
    if free < wanted:
        space = f"{folder} has {short_bytes(free)} free of {short_bytes(wanted)} needed"
    found = [_of("space", where, float(free), "B", space)]
    try:
        point(Point.DISK_WRITE, folder)
        check_folder(folder)
    except (OSError, Unfit) as error:
        return [*found, _of("read back", where, None, "", str(error))]
    found.append(_of("read back", where))
    seconds = 1.0 if quick else 10.0
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".longhaul-qualify-") as name:
            found += _measured(Path(name), where, seconds, checkpoint)
    except OSError as error:
        found.append(_of("write", where, None, "B/s", f"{folder} refused to be written: {error}"))
    return found


def _measured(room: Path, where: str, seconds: Seconds, checkpoint: Bytes) -> Iterator[Measurement]:
    speed = write_speed(room, seconds)
    yield _of("write", where, speed, "B/s")
    yield _of("read", where, _read_speed(room, seconds), "B/s")
    yield _of("several writers", where, _together(room, seconds), "B/s")
    latencies = _fsyncs(room, seconds)
    facts = {"worst_s": max(latencies), "tries": len(latencies)}
    yield Measurement(group="storage", name="fsync", device=where, unit="s",
                      value=statistics.median(latencies), facts=facts)  # fmt: skip
    yield _of("small files", where, _per_second(partial(_small_file, room), seconds), "files/s")
    yield _of("metadata", where, _per_second(partial(_metadata, room), seconds), "operations/s")
    if checkpoint:
        yield _of("save", where, checkpoint / speed, "s")
    else:
        why = "no recipe was named, so no checkpoint's size is known"
        yield Measurement(group="storage", name="save", device=where, skipped=why)


def write_speed(folder: Path, seconds: Seconds = 2.0, most: Bytes = 256 << 20) -> float:
    """Bytes a second that reach the medium of `folder`, fsync included; OSError if none can.

    The median piece counts, so that what stops this process for a moment is not the medium's.
    """
    piece = os.urandom(_PIECE)
    took: list[Seconds] = []
    with tempfile.TemporaryFile(dir=folder, prefix=".longhaul-speed-") as file:
        until = time.monotonic() + seconds
        while not took or (time.monotonic() < until and len(took) < most // _PIECE):
            began = time.monotonic()
            point(Point.DISK_WRITE, folder)
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.monotonic() - began)
    return _PIECE / statistics.median(took)


def _read_speed(room: Path, seconds: Seconds) -> float:
    """Past the page cache, as far as the system allows it; of the median piece."""
    path = room / "read"
    with path.open("wb") as file:
        for _ in range(8):
            file.write(os.urandom(_PIECE))
        file.flush()
        os.fsync(file.fileno())
    took: list[Seconds] = []
    until = time.monotonic() + seconds / 2
    while not took or (time.monotonic() < until and len(took) < 128):
        with path.open("rb") as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.monotonic()
            while file.read(_PIECE):
                took.append(time.monotonic() - began)
                began = time.monotonic()
    path.unlink()
    return _PIECE / statistics.median(took)


def _together(room: Path, seconds: Seconds) -> float:
    """Sum over several writers at once."""
    with ThreadPoolExecutor(_WRITERS) as pool:
        most = (256 << 20) // _WRITERS
        return sum(pool.map(lambda _: write_speed(room, seconds / 2, most), range(_WRITERS)))


def _fsyncs(room: Path, seconds: Seconds) -> list[Seconds]:
    """Of 4 kB appended, as the journal does it."""
    latencies: list[Seconds] = []
    until = time.monotonic() + seconds / 2
    with (room / "fsync").open("wb", buffering=0) as file:
        while len(latencies) < 5 or (time.monotonic() < until and len(latencies) < 500):
            began = time.monotonic()
            point(Point.DISK_WRITE, room)
            file.write(b"\0" * _SMALL)
            os.fsync(file.fileno())
            latencies.append(time.monotonic() - began)
    return latencies


def _per_second(work: Callable[[int], int], seconds: Seconds) -> float:
    """Operations in a second, by the faster quarter of the tries, least disturbed."""
    took: list[Seconds] = []
    until = time.monotonic() + seconds / 4
    while len(took) < 20 or (time.monotonic() < until and len(took) < 5000):
        began = time.monotonic()
        done = work(len(took))
        took.append((time.monotonic() - began) / done)
    return 1.0 / max(sorted(took)[len(took) // 4], 1e-9)


def _small_file(room: Path, number: int) -> int:
    (room / f"small-{number}").write_bytes(b"\0" * _SMALL)
    return 1


def _metadata(room: Path, number: int) -> int:
    """Made, looked at, renamed, removed: four operations."""
    path, other = room / f"meta-{number}", room / f"moved-{number}"
    path.touch()
    path.stat()
    path.rename(other)
    other.unlink()
    return 4


def remote(address: str) -> Measurement:
    """Seconds in which a store takes 1 MB, gives it back and lets it go."""
    shown = without_secrets(address)
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="longhaul-qualify-") as name:
            send_and_remove(address, Path(name))
    except LonghaulError as error:
        return _of("remote tier", shown, None, "s", error.message)
    return _of("remote tier", shown, time.monotonic() - began, "s")


def send_and_remove(address: str, folder: Path) -> str:
    """Send 1 MB to a store, which is read back and compared, and remove it; the store's name."""
    store = StoreFiles(address, patience=_PATIENCE)
    local = folder / "sent"
    local.write_bytes(os.urandom(SENT))
    sha256 = hashlib.sha256(local.read_bytes()).hexdigest()
    path = f".preflight-{uuid.uuid4().hex[:12]}"
    try:
        store.send(local, path, FileEntry(name=path, size_bytes=SENT, sha256=sha256))
    finally:
        store.remove(path)
    return store.name


def _of(
    name: str, where: str, value: float | None = None, unit: str = "", wrong: str = ""
) -> Measurement:
    return Measurement(
        group="storage", name=name, device=where, value=value, unit=unit, wrong=wrong
    )
