import hashlib
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
