"""Writing files so that nothing is ever half there; and counting bytes, so that who waits for them
sees whether a transfer is slow or hangs.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

from longhaul.core.units import Bytes


class Meter:
    """A sum of bytes; one thread adds, others read."""

    def __init__(self) -> None:
        self.total: Bytes = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Add what this thread moves in the body."""
        token = _OPEN.set(self)
        try:
            yield
        finally:
            _OPEN.reset(token)


_OPEN: ContextVar[Meter | None] = ContextVar("meter", default=None)


def moved(size: Bytes) -> None:
    """Say that so many bytes have been written, or read; counted if anybody counts."""
    meter = _OPEN.get()
    if meter is not None:
        meter.total += size


_CHUNK_BYTES = 1 << 20


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an `OSError` of the body name `path`: those of a descriptor know no name."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def fsync_folder(folder: Path) -> None:
    """Make names in `folder` (creations, renames) survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _temporary_beside(path: Path, write: Callable[[BinaryIO], object]) -> Iterator[Path]:
    """A file beside `path` with what `write` writes, on the medium; gone after the body."""
    # Threads share a process number, and so do containers on one file system.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with naming(path), temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a temporary file beside `path`, fsync it, and rename it into place. If the
    medium refuses, `path` is as it was.
    """
    with _temporary_beside(path, write) as temporary:
        temporary.replace(path)
    fsync_folder(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically."""
    write_atomically(path, lambda file: file.write(content))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    write_bytes(path, (text + "\n").encode())


def create_exclusively(path: Path, content: bytes) -> bool:
    """Create `path` with `content` unless it exists; False if somebody else was first. Works on NFS
    and Lustre too, where locks may not: written under another name and linked.
    """
    with _temporary_beside(path, lambda file: file.write(content)) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            # NFS may make the link and lose its answer; then both names are the same file.
            if temporary.stat().st_nlink != 2:
                return False
    fsync_folder(path.parent)
    return True


def sha256_of(path: Path, past_page_cache: bool = False) -> str:
    """SHA-256 of a file, in hexadecimal; past the page cache only where the system allows it."""
    digest = hashlib.sha256()
    with naming(path), path.open("rb") as file:
        if past_page_cache and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            moved(len(chunk))
    return digest.hexdigest()
