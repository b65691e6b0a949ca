"""Shards of prepared text in a folder of set size, by their hashes, used longest ago out first.

```
CACHE/ab/ab12…         a shard, by its SHA-256; prepared folders on the same file system link it
CACHE/ab/ab12….part    one that comes
CACHE/locks/ab12…      who fetches it; the others wait
```

Several processes, and nodes that share the folder, may use it at once: one of them fetches a shard,
the others wait for it. A shard that a prepared folder links is in use and stays.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from longhaul.core.errors import DataError
from longhaul.core.files import fsync_folder, naming, sha256_of
from longhaul.core.units import Bytes, short_bytes
from longhaul.store.manifest import FileEntry

_PART = ".part"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Held:
    """One file of the cache."""

    path: Path
    size_bytes: Bytes
    used: float
    """Unix time of its last use."""
    linked: bool
    """A prepared folder links it."""

    @property
    def sha256(self) -> str:
        """Of the shard that it is, or becomes."""
        return self.path.name.removesuffix(_PART)


def to_evict(held: list[Held], needed: Bytes, most: Bytes) -> list[Held] | None:
    """What must go, used longest ago first, so that `needed` more bytes fit into `most`; None if
    what is linked leaves too little room. Pure.
    """
    total, gone = sum(one.size_bytes for one in held), []
    for one in sorted((one for one in held if not one.linked), key=lambda one: one.used):
        if total + needed <= most:
            break
        total -= one.size_bytes
        gone.append(one)
    return gone if total + needed <= most else None


class ShardCache:
    """The shards in `folder`, never more than `most_bytes` of them, those that come included."""

    def __init__(self, folder: Path, most_bytes: Bytes) -> None:
        self.folder = folder
        self.most_bytes = most_bytes

    def hold(self, file: FileEntry, fetch: Callable[[Path], None]) -> Path:
        """The shard's path, fetched if it is not here: `fetch` fills a file, goes on with what is
        there, and compares its hash. It may be gone again soon unless it is linked (`link`).

        Raises:
            DataError: it does not fit beside what is linked.
            OSError: the medium refuses.
        """
        return self.use(file, fetch, lambda path: path)

    def use(self, file: FileEntry, fetch: Callable[[Path], None], opened: Callable[[Path], T]) -> T:
        """What `opened` makes of the shard before it can go; as `hold`."""
        with self._locked(file.sha256):
            return opened(self._hold(file, fetch))

    def touch(self, file: FileEntry) -> None:
        """It is in use: let others go first. What is not here is left alone."""
        with suppress(OSError):
            self._touch(self.folder / file.sha256[:2] / file.sha256)

    def link(self, file: FileEntry, target: Path, fetch: Callable[[Path], None]) -> None:
        """Let `target`, on the same file system, be the shard, which stays as long as it does; as
        `hold`.
        """
        with self._locked(file.sha256):
            path = self._hold(file, fetch)
            target.unlink(missing_ok=True)
            try:
                with naming(target):
                    os.link(path, target)
            except OSError as error:
                raise DataError(
                    f"{target}: cannot link {path} ({error.strerror})",
                    "put the cache on the file system of the prepared text",
                ) from error

    def held(self) -> list[Held]:
        """What is here, and what comes with the size that it will have."""
        with self._locked("room"):
            return self._held()

    def _held(self) -> list[Held]:
        found = []
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            for path in folder.iterdir():
                with suppress(FileNotFoundError):
                    state = path.stat()
                    size = state.st_size
                    if path.name.endswith(_PART):
                        size = max(size, self._promised(path))
                    found.append(Held(path, size, state.st_atime, state.st_nlink > 1))
        return found

    def _hold(self, file: FileEntry, fetch: Callable[[Path], None]) -> Path:
        path = self.folder / file.sha256[:2] / file.sha256
        if path.is_file():
            if sha256_of(path) == file.sha256:
                self._touch(path)
                return path
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}{_PART}")
        self._make_room(part, file.size_bytes)
        fetch(part)
        if part.stat().st_size != file.size_bytes or sha256_of(part) != file.sha256:
            part.unlink()
            raise DataError(f"{file.name}: what came is not the shard that its hash names")
        with self._locked("room"):  # who lists the folder meanwhile could miss both names
            part.replace(path)
            self._promise(part).unlink(missing_ok=True)
        fsync_folder(path.parent)
        self._touch(path)
        return path

    def _make_room(self, part: Path, size: Bytes) -> None:
        """Promise the room of a shard to it, before its first byte comes."""
        with self._locked("room"), ExitStack() as stack:
            if self._promised(part) == size and part.exists():
                return
            held = [one for one in self._held() if one.path != part]
            gone = self._evictable(held, size, stack)
            for one in gone:
                one.path.unlink(missing_ok=True)
                self._promise(one.path).unlink(missing_ok=True)
            self._promise(part).write_text(str(size))
            part.touch()

    def _evictable(self, held: list[Held], size: Bytes, stack: ExitStack) -> list[Held]:
        """What goes, each locked in `stack`: nobody fetches it, or is about to link it."""
        while True:
            gone = to_evict(held, size, self.most_bytes)
            if gone is None:
                used = sum(one.size_bytes for one in held if one.linked)
                raise DataError(
                    f"{self.folder}: {short_bytes(size)} do not fit: {short_bytes(used)} of "
                    f"{short_bytes(self.most_bytes)} are in use",
                    "remove prepared folders that nobody needs, or give the cache more room",
                )
            busy = [one for one in gone if not self._lock_at_once(one, stack)]
            if not busy:
                return gone
            held = [replace(one, linked=True) if one in busy else one for one in held]

    def _promise(self, part: Path) -> Path:
        return self.folder / "locks" / f"{part.name}.size"

    def _promised(self, part: Path) -> Bytes:
        with suppress(OSError, ValueError):
            return int(self._promise(part).read_text())
        return 0

    def _lock_at_once(self, one: Held, stack: ExitStack) -> bool:
        lock = stack.enter_context((self.folder / "locks" / one.sha256).open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        locks = self.folder / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _touch(self, path: Path) -> None:
        # The time of change stays: by it a run knows that it has compared the file.
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
