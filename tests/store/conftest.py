import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from longhaul.store.manifest import Manifest, write_listed_file, write_manifest
from longhaul.store.remote import RemoteTier
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import Patience


@pytest.fixture
def fill() -> Callable[..., Path]:
    """Write a small checkpoint with a manifest into a folder."""

    def fill(
        folder: Path, step: int, content: bytes = b"state", time: float = 0.0, **more: bytes
    ) -> Path:
        folder.mkdir(parents=True)
        contents = {"state.json": content} | {f"{name}.bin": value for name, value in more.items()}
        files = [write_listed_file(folder / name, [value]) for name, value in contents.items()]
        write_manifest(folder, Manifest(step=step, time=time or float(step), files=tuple(files)))
        return folder

    return fill


class FaultyStore(LocalFileSystem):
    """A folder that behaves as stores do on a bad day. Faults are laid for each test anew."""

    protocol = ("faulty",)
    cachable = False

    def __init__(self) -> None:
        super().__init__(auto_mkdir=True, skip_instance_cache=True)
        self.away = False
        """Every call fails."""
        self.hangs: set[str] = set()
        """Names of files of which no byte comes or goes until `released`."""
        self.released = threading.Event()
        self.cut: dict[str, int] = {}
        """Name → bytes after which reading or writing it fails once."""
        self.flipped: set[str] = set()
        """Names of files of which one byte is wrong once it is there; once."""
        self.written: list[str] = []
        """Names of files that were sent, in order."""
        self.read: list[tuple[str, int]] = []
        """Names of files that were opened to read, and where their reading began."""

    def _refuse(self) -> None:
        if self.away:
            raise OSError("503 Slow Down")

    def ls(self, path, detail=False, **kwargs):
        self._refuse()
        return super().ls(path, detail=detail, **kwargs)

    def info(self, path, **kwargs):
        self._refuse()
        return super().info(path, **kwargs)

    def cat_file(self, path, start=None, end=None, **kwargs):
        self._refuse()
        with Path(path).open("rb") as file:
            return file.read()[start:end]

    def rm_file(self, path):
        self._refuse()
        Path(path).unlink()

    def open(self, path, mode="rb", block_size=None, **kwargs):
        self._refuse()
        return FaultyFile(self, Path(path), mode)


class FaultyFile:
    def __init__(self, store: FaultyStore, path: Path, mode: str) -> None:
        self.store, self.path, self.file = store, path, path.open(mode)
        self.writes, self.told = "w" in mode, False
        if self.writes:
            store.written.append(path.name)

    def _suffer(self, length: int) -> None:
        if not self.writes and not self.told:
            self.store.read.append((self.path.name, self.file.tell()))
            self.told = True
        self.store._refuse()
        if self.path.name in self.store.hangs:
            self.store.released.wait()
        limit = self.store.cut.get(self.path.name)
        if limit is not None and self.file.tell() + length > limit:
            del self.store.cut[self.path.name]
            raise OSError("500 Internal Server Error")

    def read(self, length: int) -> bytes:
        self._suffer(length)
        return self.file.read(length)

    def write(self, piece: bytes) -> int:
        self._suffer(len(piece))
        return self.file.write(piece)

    def seek(self, place: int) -> int:
        return self.file.seek(place)

    def close(self) -> None:
        self.file.close()
        if self.writes and self.path.name in self.store.flipped:
            self.store.flipped.remove(self.path.name)
            content = bytearray(self.path.read_bytes())
            content[-1] ^= 1
            self.path.write_bytes(content)


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    system = FaultyStore()
    yield system
    system.released.set()


@pytest.fixture
def tier_of(tmp_path: Path) -> Callable[..., RemoteTier]:
    """A tier in a folder of its own, of a store that may be faulty and is soon asked again."""

    def tier_of(system: FaultyStore | None = None, name: str = "remote") -> RemoteTier:
        patience = Patience(
            answer_s=30, slowest_bytes_per_s=1e9, first_pause_s=0.001, longest_pause_s=0.01
        )
        place = (system, str(tmp_path / name)) if system else None
        return RemoteTier(StoreFiles(str(tmp_path / name), patience=patience, system=place))

    return tier_of
