"""Single files of a store: sent, read back, fetched and listed by fsspec, under a deadline each."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from longhaul.core.addresses import scrubbed, unsealed, without_secrets
from longhaul.core.clocks import Clock, RealClock
from longhaul.core.errors import LonghaulError, RecipeError
from longhaul.core.files import naming
from longhaul.core.output import Say
from longhaul.core.units import Bytes
from longhaul.store.manifest import FileEntry, RefusedCheckpoint, refusing
from longhaul.store.transfers import (
    Calls,
    Deadline,
    Patience,
    StoreError,
    Throttle,
    TransferStopped,
)

_INSTALL = {
    **dict.fromkeys(("s3", "s3a"), "'longhaul[s3]'"), "hf": "'longhaul[hf]'",
    **dict.fromkeys(("gs", "gcs"), "gcsfs"), **dict.fromkeys(("az", "abfs"), "adlfs"),
}  # fmt: skip
"""What pip installs for a scheme; for others fsspec's own error names the package."""
_FOLDERLESS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory", "hf"})
"""Stores of keys, in which a folder is a way of speaking. Making one there may even make a
bucket, which is for a person to do."""


def file_system(
    address: str, error: type[LonghaulError], what: str, way: str, **options: Any
) -> tuple[Any, str]:
    """The file system of an address, sealed or not, by fsspec, and the path in it.

    If there is none, or its package is not installed, `error` names `what` and the `way` out.
    """
    import fsspec

    scheme = address.partition("://")[0]
    try:
        system, root = fsspec.core.url_to_fs(unsealed(address), **options)
    except ImportError as missing:
        raise error(
            f"{what}: {scheme}:// needs a package that is not here",
            f"pip install {_INSTALL.get(scheme, missing)}",
        ) from None
    except ValueError as problem:
        raise error(f"{what}: {scrubbed(str(problem))}", way) from None
    return system, str(root)


def protocols(system: Any) -> set[str]:
    """The schemes that a file system serves."""
    return set(system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))


def _located(address: str) -> tuple[Any, str]:
    # Listings are never cached: another process may write there too.
    options: dict[str, Any] = {"use_listings_cache": False}
    if "://" not in address or address.startswith(("file://", "local://")):
        options["auto_mkdir"] = True
    what = f"checkpoint.remote: {without_secrets(address)}"
    way = "give a folder, or an address such as s3://bucket/folder"
    system, root = file_system(address, RecipeError, what, way, **options)
    return system, root.rstrip("/")


T = TypeVar("T")

_PIECE_BYTES = 4 << 20
_SMALLEST_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000
"""S3 takes 10,000 parts of one upload."""
_ATTEMPTS = 3
"""To fetch a file before the next copy is taken: a run stands still meanwhile."""
_GIVING_UP_S = 1.0


class StoreFiles:
    """The files below one address: a folder or an fsspec address. RecipeError if there is no file
    system for it; `system` is one that was found before, and the path in it.

    Every method raises `StoreError` if the store refuses, hangs or gives other bytes; whatever
    waits for a transfer raises `TransferStopped` if the run ends meanwhile.
    """

    def __init__(
        self,
        address: str,
        *,
        clock: Clock | None = None,
        patience: Patience | None = None,
        throttle: Throttle | None = None,
        system: tuple[Any, str] | None = None,
    ) -> None:
        self.name = without_secrets(address).rstrip("/")
        self.patience = patience or Patience()
        self.throttle = throttle or Throttle()
        self._clock: Clock = clock or RealClock()
        self._system, self._root = system or _located(address)
        self._calls = Calls()

    def names(self, folder: str = "") -> list[str]:
        """Names of what lies directly below the address, or a folder below it, sorted."""
        place = self._path(folder) if folder else self._root
        paths = self._answer("listing", lambda: self._system.ls(place, detail=False))
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in paths or ())

    def read_small(self, path: str) -> bytes | None:
        """The bytes of a file that fits memory; None if there is none."""
        content = self._answer(path, lambda: self._system.cat_file(self._path(path)))
        return None if content is None else bytes(content)

    def holds(self, path: str, file: FileEntry) -> bool:
        """Whether a file is there with these very bytes; they are read back to know it."""
        with self._explained(path):
            deadline = self._deadline(file.size_bytes, path)
            try:
                found = deadline.call(lambda: self._system.info(self._path(path)))
            except FileNotFoundError:
                return False
            if int(found["size"]) != file.size_bytes:
                return False
            digest = hashlib.sha256()
            for piece in self._pieces_of(path, 0, file.size_bytes, deadline):
                digest.update(piece)
            return digest.hexdigest() == file.sha256

    def send(self, source: Path, path: str, file: FileEntry, growing: bool = False) -> None:
        """Bring a local file there and read it back; of one that is growing its first
        `file.size_bytes`. RefusedCheckpoint if the local file is gone, or is not what `file` says.
        """
        pieces = local_pieces(source, file.size_bytes if growing else None)
        self._send(pieces, str(source), path, file)

    def send_bytes(self, content: bytes, path: str) -> None:
        """Bring these bytes there and read them back."""
        name = path.rpartition("/")[2]
        file = FileEntry(name, len(content), hashlib.sha256(content).hexdigest())
        self._send(iter([content]), name, path, file)

    def fetch(self, path: str, target: Path, file: FileEntry, say: Say) -> None:
        """Bring a file here, going on where it was cut off; OSError if the local medium refuses."""
        self._again(lambda: self._read(path, target, file), say)

    def fetch_ranges(
        self, path: str, target: Path, size: Bytes, ranges: Sequence[tuple[Bytes, Bytes]], say: Say
    ) -> None:
        """Bring parts of a file here, begin to end each, into a file of its whole `size` that has
        holes elsewhere; OSError if the local medium refuses. No hash can be compared.
        """
        self._again(lambda: self._read_ranges(path, target, size, ranges), say)

    def read_range(self, path: str, begin: Bytes, end: Bytes) -> bytes:
        """Some bytes of a file, and no others: what reads ahead would fetch megabytes."""
        content = self._answer(
            path, lambda: self._system.cat_file(self._path(path), start=begin, end=end)
        )
        if content is None:
            raise StoreError(f"{self.name}/{path}: is not there")
        return bytes(content)

    def _again(self, call: Callable[[], None], say: Say) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                call()
                return
            except StoreError as error:
                if attempt == _ATTEMPTS:
                    raise
                say(f"{error.message}; trying again")
                self.throttle.wait(self.patience.pause_s(attempt))

    def remove(self, path: str) -> None:
        """Delete a file or a folder; it may be gone already."""
        self._answer(path, lambda: self._system.rm(self._path(path), recursive=True))

    def _send(self, pieces: Iterator[bytes], source: str, path: str, file: FileEntry) -> None:
        with self._explained(path):
            self._write(pieces, source, path, file)
            if not self.holds(path, file):
                raise StoreError(f"{self.name}/{path}: the store gives back other bytes")

    def _write(self, pieces: Iterator[bytes], source: str, path: str, file: FileEntry) -> None:
        deadline = self._deadline(file.size_bytes, path)
        digest = hashlib.sha256()
        target = deadline.call(lambda: self._open_to_write(path, file.size_bytes))
        try:
            for piece in pieces:
                digest.update(piece)
                self._timed(deadline, len(piece), partial(target.write, piece))
            if digest.hexdigest() != file.sha256:
                raise RefusedCheckpoint(f"{source}: differs from its manifest; it was not sent")
            deadline.call(lambda: _close(target, fsync="file" in protocols(self._system)))
        except BaseException:
            with suppress(Exception):
                self._calls.within(_GIVING_UP_S, path, lambda: _give_up(target))
            raise

    def _read(self, path: str, target: Path, file: FileEntry) -> None:
        digest, there = _hash_so_far(target, file.size_bytes)
        deadline = self._deadline(file.size_bytes - there, path)
        with naming(target), target.open("ab") as local:
            pieces = self._pieces_of(path, there, file.size_bytes, deadline)
            while True:
                with self._explained(path):  # errors of the local disk are no fault of the store
                    piece = next(pieces, None)
                if piece is None:
                    break
                digest.update(piece)
                local.write(piece)
            local.flush()
            os.fsync(local.fileno())
        if digest.hexdigest() != file.sha256:
            target.unlink()  # going on from a wrong beginning would never end well
            raise StoreError(f"{self.name}/{path}: its bytes differ from its manifest")

    def _read_ranges(
        self, path: str, target: Path, size: Bytes, ranges: Sequence[tuple[Bytes, Bytes]]
    ) -> None:
        deadline = self._deadline(sum(end - begin for begin, end in ranges), path)
        with naming(target), target.open("wb") as local:
            local.truncate(size)
            for begin, end in ranges:
                local.seek(begin)
                pieces = self._pieces_of(path, begin, end, deadline)
                while True:
                    with self._explained(path):
                        piece = next(pieces, None)
                    if piece is None:
                        break
                    local.write(piece)

    def _pieces_of(
        self, path: str, begin: Bytes, end: Bytes, deadline: Deadline
    ) -> Iterator[bytes]:
        if begin == end:
            return
        stream = deadline.call(lambda: self._open_to_read(path, begin))
        try:
            while begin < end:
                length = min(_PIECE_BYTES, end - begin)
                piece = self._timed(deadline, length, partial(stream.read, length))
                if not piece:
                    raise StoreError(f"{self.name}/{path}: ended after {begin} of {end} bytes")
                begin += len(piece)
                yield piece
        finally:
            with suppress(Exception):
                self._calls.within(_GIVING_UP_S, path, stream.close)

    def _open_to_write(self, path: str, size: Bytes) -> Any:
        if not _FOLDERLESS & protocols(self._system):
            self._system.makedirs(self._path(path).rpartition("/")[0], exist_ok=True)
        part = max(_SMALLEST_PART_BYTES, size // _MOST_PARTS)
        return self._system.open(self._path(path), "wb", block_size=part)

    def _open_to_read(self, path: str, begin: Bytes) -> Any:
        stream = self._system.open(self._path(path), "rb", block_size=_PIECE_BYTES)
        if begin:
            stream.seek(begin)
        return stream

    def _timed(self, deadline: Deadline, size: Bytes, call: Callable[[], T]) -> T:
        """The result of transferring one piece, and a rest after it."""
        began = self._clock.monotonic()
        result = deadline.call(call)
        self.throttle.rest(size, self._clock.monotonic() - began)
        return result

    def _answer(self, path: str, call: Callable[[], T]) -> T | None:
        with self._explained(path):
            try:
                return self._calls.within(self.patience.answer_s, f"{self.name}/{path}", call)
            except FileNotFoundError:
                return None

    def _deadline(self, size: Bytes, path: str) -> Deadline:
        most_s = self.patience.deadline_s(size)
        return Deadline(self._calls, most_s, f"{self.name}/{path}", self._clock)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        """Turn what a store raises into an error that names the file."""
        try:
            yield
        except (LonghaulError, TransferStopped):
            raise
        except Exception as error:  # every fsspec back-end brings its own family of exceptions
            first_line = scrubbed(str(error).partition("\n")[0])
            raise StoreError(f"{self.name}/{path}: {type(error).__name__}: {first_line}") from error


def local_pieces(source: Path, most: Bytes | None = None) -> Iterator[bytes]:
    """The bytes of a file, or the first `most` of them. RefusedCheckpoint if it cannot be read."""
    left = most
    with refusing(source), source.open("rb") as file:
        while piece := file.read(_PIECE_BYTES if left is None else min(_PIECE_BYTES, left)):
            yield piece
            left = None if left is None else left - len(piece)


def _hash_so_far(target: Path, most: Bytes) -> tuple[Any, Bytes]:
    """The hash of what has come of a file, and how much that is; too much is thrown away."""
    digest, size = hashlib.sha256(), 0
    if target.exists():
        if target.stat().st_size > most:
            target.unlink()
            return digest, 0
        for piece in local_pieces(target):
            digest.update(piece)
            size += len(piece)
    return digest, size


def _close(target: Any, fsync: bool) -> None:
    if fsync:
        target.flush()
        os.fsync(target.fileno())
    target.close()


def _give_up(target: Any) -> None:
    """End an upload without committing it, or its parts would be kept and charged for."""
    from fsspec.spec import AbstractBufferedFile

    if isinstance(target, AbstractBufferedFile):
        target.discard()
        target.closed = True  # else it commits what it holds when it is collected
    else:
        target.close()
