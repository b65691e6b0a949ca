"""Memory that outlives a worker: the supervisor makes it, the ranks it forks keep snapshots there.

Each slot is a nameless file in memory (`memfd_create`), handed on by the fork; the kernel takes it
back with the last process that holds it.

    0       header: magic, size of the data, CRC of the label
    4096    data, mapped by the rank
    …       label: JSON; behind the data

The header is written last and wiped first, so that half a snapshot is never chosen.
"""

import json
import mmap
import os
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from longhaul.core.units import Bytes

DESCRIPTORS = "LONGHAUL_SNAPSHOTS"
"""Environment variable of a worker: descriptors of its slots, with commas between them."""
SLOTS = 8
"""Of one rank: as many snapshots as a ring keeps at most."""
_NAME = "longhaul-snapshot"
_MAGIC = b"lhsnap02"
_HEADER = struct.Struct("<8sQI")
_PAGE: Bytes = 4096


class SharedMemory:
    """The supervisor's side: slots for the ranks of a run, kept while workers come and go. A slot
    takes no memory until it is filled. Systems without such files have none.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, list[int]] = {}

    def environment(self, rank: int) -> dict[str, str]:
        """What a forked worker must know to find the slots of its rank."""
        if not hasattr(os, "memfd_create"):
            return {}
        if rank not in self._descriptors:
            made: list[int] = []
            try:
                while len(made) < SLOTS:
                    made.append(os.memfd_create(f"{_NAME}-{rank}"))
            except OSError:  # too many open files: a run must not end for want of a convenience
                for descriptor in made:  # nor keep what it would need for something else
                    os.close(descriptor)
                return {}
            self._descriptors[rank] = made
        return {DESCRIPTORS: ",".join(map(str, self._descriptors[rank]))}

    def keep_only(self, ranks: Collection[int]) -> None:
        """Give back the memory of all other ranks, which have gone elsewhere; none may be alive."""
        for rank, descriptors in self._descriptors.items():
            if rank not in ranks:
                for descriptor in descriptors:
                    os.ftruncate(descriptor, 0)

    def labels(self) -> Iterator[Mapping[str, Any]]:
        """Of all that is sealed, whoever's it is."""
        for descriptor in self._all():
            if (label := Slot(descriptor).label()) is not None:
                yield label

    def close(self) -> None:
        """Let go of it."""
        for descriptor in self._all():
            os.close(descriptor)
        self._descriptors = {}

    def _all(self) -> list[int]:
        return [one for descriptors in self._descriptors.values() for one in descriptors]


class Slot:
    """A rank's side of one slot, by its file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def held_bytes(self) -> Bytes:
        """Memory that it takes."""
        return os.fstat(self._descriptor).st_size

    def data(self, size: Bytes) -> memoryview:
        """Its first `size` bytes, to read and write; an `OSError` if that is too much."""
        if self.held_bytes < _PAGE + size:
            os.ftruncate(self._descriptor, _PAGE + size)
        return memoryview(mmap.mmap(self._descriptor, _PAGE + size))[_PAGE:]

    def seal(self, size: Bytes, label: Mapping[str, Any]) -> None:
        """Say what the data are, now that all of them are there."""
        text = json.dumps(label, allow_nan=False).encode()
        os.ftruncate(self._descriptor, _PAGE + size + len(text))
        os.pwrite(self._descriptor, text, _PAGE + size)
        os.pwrite(self._descriptor, _HEADER.pack(_MAGIC, size, zlib.crc32(text)), 0)

    def break_seal(self) -> None:
        """The data are about to change, or must not be gone back to."""
        if self.held_bytes:
            os.pwrite(self._descriptor, bytes(len(_MAGIC)), 0)

    def free(self) -> None:
        """Give its memory back; nobody may touch what `data` gave any more."""
        os.ftruncate(self._descriptor, 0)

    def label(self) -> Mapping[str, Any] | None:
        """What `seal` said; None if it holds nothing, or only a part of something."""
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        magic, size, crc = _HEADER.unpack(header)
        length = self.held_bytes - _PAGE - size
        if magic != _MAGIC or length < 0:
            return None
        text = os.pread(self._descriptor, length, _PAGE + size)
        return json.loads(text) if zlib.crc32(text) == crc else None


def slots(environment: Mapping[str, str]) -> tuple[Slot, ...]:
    """The slots of this worker; none where it was not forked by a supervisor that has some."""
    numbers = [int(number) for number in environment.get(DESCRIPTORS, "").split(",") if number]
    # A program that was started by a worker has its environment, but not its files.
    return tuple(Slot(number) for number in numbers if _is_slot(number))


def _is_slot(descriptor: int) -> bool:
    with suppress(OSError):
        return _NAME in str(Path(f"/proc/self/fd/{descriptor}").readlink())
    return False
