import ctypes
import hashlib
import mmap
import os
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from longhaul.core.files import create_exclusively, sha256_of, write_atomically, write_json


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    write_json(path, {"lr": 1})
    before = path.read_bytes()

    def fail(file: BinaryIO) -> None:
        file.write(b"half of")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, fail)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_of_many_takers_exactly_one_creates_the_file_and_it_is_whole(tmp_path: Path) -> None:
    path, won = tmp_path / "000001.json", []
    start = threading.Barrier(8)

    def take(number: int) -> None:
        start.wait()
        # Each taker writes under a name of its own process; threads share one, so they take turns.
        with lock:
            if create_exclusively(path, str(number).encode() * 1000):
                won.append(number)

    lock = threading.Lock()
    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert path.read_bytes() == str(won[0]).encode() * 1000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("past_page_cache", [False, True])
def test_the_hash_is_that_of_the_bytes(tmp_path: Path, past_page_cache: bool) -> None:
    content = bytes(range(256)) * 9000
    path = tmp_path / "file"
    path.write_bytes(content)
    assert sha256_of(path, past_page_cache) == hashlib.sha256(content).hexdigest()


def cached_pages(path: Path) -> int:
    """How many of a file's pages the kernel holds in memory, as mincore(2) tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    told = (ctypes.c_ubyte * pages)()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        start = ctypes.c_ubyte.from_buffer(mapped)
        try:
            if libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), told) != 0:
                pytest.skip(f"mincore: {os.strerror(ctypes.get_errno())}")
        finally:
            del start
    return sum(page & 1 for page in told)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no posix_fadvise")
def test_past_the_page_cache_the_bytes_come_from_the_medium(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_json(path, list(range(200_000)))  # fsynced: a page that is not cannot be dropped
    path.read_bytes()
    advise, held = os.posix_fadvise, []

    def watched(*arguments: int) -> None:
        held.append(cached_pages(path))
        advise(*arguments)
        held.append(cached_pages(path))

    monkeypatch.setattr(os, "posix_fadvise", watched)
    sha256_of(path, past_page_cache=True)
    before, after = held
    if before and after == before:
        pytest.skip("this file system keeps its files in memory")
    assert before > 300
    assert after == 0
