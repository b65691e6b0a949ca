"""The cache of shards: never larger than its size, least recently used out, one fetches."""

import hashlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.core.errors import DataError
from longhaul.data.shard_cache import Held, ShardCache, to_evict
from longhaul.store.manifest import FileEntry


def shard(number: int, size: int = 100) -> tuple[FileEntry, bytes]:
    content = hashlib.sha256(str(number).encode()).digest() * (size // 32 + 1)
    content = content[:size]
    name = f"{number:05d}.shard"
    return FileEntry(name, size, hashlib.sha256(content).hexdigest()), content


class Source:
    """Where shards come from; counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def of(self, file: FileEntry, content: bytes):
        def fetch(part: Path) -> None:
            self.asked.append(file.name)
            part.write_bytes(content)

        return fetch


def size_of(cache: ShardCache) -> int:
    return sum(one.size_bytes for one in cache.held())


def test_a_shard_is_fetched_once_and_found_again(tmp_path: Path) -> None:
    cache, source = ShardCache(tmp_path / "cache", 1000), Source()
    file, content = shard(1)
    for _ in range(3):
        assert cache.hold(file, source.of(file, content)).read_bytes() == content
    assert source.asked == [file.name]


def test_the_one_used_longest_ago_goes_first_and_the_size_is_never_passed(tmp_path) -> None:
    cache, source = ShardCache(tmp_path / "cache", 350), Source()
    for number in (1, 2, 3, 1, 4):  # 1 is used again before 4 needs room
        file, content = shard(number)
        cache.hold(file, source.of(file, content))
        assert size_of(cache) <= 350
    held = {one.sha256 for one in cache.held()}
    assert held == {shard(n)[0].sha256 for n in (1, 3, 4)}


def test_room_is_promised_before_the_first_byte(tmp_path: Path) -> None:
    cache, seen = ShardCache(tmp_path / "cache", 250), []
    for number in (1, 2, 3):
        file, content = shard(number)

        def fetch(part: Path, content: bytes = content) -> None:
            part.write_bytes(content[:10])
            seen.append(size_of(cache))
            part.write_bytes(content)

        cache.hold(file, fetch)
    assert seen == [100, 200, 200]


def test_what_a_prepared_folder_links_stays_and_what_does_not_fit_is_refused(tmp_path) -> None:
    cache, source = ShardCache(tmp_path / "cache", 250), Source()
    for number in (1, 2):
        file, content = shard(number)
        cache.link(file, tmp_path / file.name, source.of(file, content))
        assert (tmp_path / file.name).read_bytes() == content
    file, content = shard(3)
    with pytest.raises(DataError, match="200 B of 250 B are in use"):
        cache.hold(file, source.of(file, content))
    (tmp_path / "00001.shard").unlink()  # nobody needs it any more
    cache.hold(file, source.of(file, content))
    assert {one.sha256 for one in cache.held()} == {shard(n)[0].sha256 for n in (2, 3)}


def test_a_damaged_shard_is_fetched_anew_and_a_wrong_one_refused(tmp_path: Path) -> None:
    cache, source = ShardCache(tmp_path / "cache", 1000), Source()
    file, content = shard(1)
    path = cache.hold(file, source.of(file, content))
    path.write_bytes(b"x" * 100)
    assert cache.hold(file, source.of(file, content)).read_bytes() == content
    other, _ = shard(2)
    with pytest.raises(DataError, match="not the shard that its hash names"):
        cache.hold(other, source.of(other, content))
    assert len(cache.held()) == 1


def test_of_many_that_want_one_shard_one_fetches_and_the_others_wait(tmp_path: Path) -> None:
    source, begun, go = Source(), threading.Event(), threading.Event()
    file, content = shard(1)

    def fetch(part: Path) -> None:
        begun.set()
        assert go.wait(10)
        source.of(file, content)(part)

    def want() -> None:
        ShardCache(tmp_path / "cache", 1000).hold(file, fetch)  # as another process would

    threads = [threading.Thread(target=want) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    go.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert source.asked == [file.name]


def test_a_process_that_died_in_the_middle_leaves_room_to_others_and_is_gone_on_with(
    tmp_path: Path,
) -> None:
    cache, source = ShardCache(tmp_path / "cache", 250), Source()
    file, content = shard(1)

    def dies(part: Path) -> None:
        part.write_bytes(content[:40])
        raise OSError("the process is killed")

    with pytest.raises(OSError, match="killed"):
        cache.hold(file, dies)
    found: list[int] = []

    def goes_on(part: Path) -> None:
        found.append(part.stat().st_size)
        part.write_bytes(content)

    cache.hold(file, goes_on)
    assert found == [40]
    other, bytes_of_other = shard(2)
    with pytest.raises(OSError, match="killed"):
        cache.hold(other, dies)
    for number in (3, 4):  # the part of 2 is nobody's: it goes
        file, content = shard(number)
        cache.hold(file, source.of(file, content))
        assert size_of(cache) <= 250
    assert bytes_of_other != content


def test_many_threads_never_pass_the_size(tmp_path: Path) -> None:
    cache, source, most = ShardCache(tmp_path / "cache", 550), Source(), []

    def want(first: int) -> None:
        for number in range(first, first + 12):
            file, content = shard(number % 16)

            def fetch(part: Path, file=file, content=content) -> None:
                most.append(size_of(cache))
                source.of(file, content)(part)

            assert len(cache.hold(file, fetch).name) == 64

    threads = [threading.Thread(target=want, args=(3 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert max(most) <= 550
    assert size_of(cache) <= 550


_HELD = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 50), st.booleans()), max_size=12
).map(
    lambda rows: [
        Held(Path(f"{n:064x}"), size, float(used), linked)
        for n, (size, used, linked) in enumerate(rows)
    ]
)


@given(_HELD, st.integers(0, 200), st.integers(0, 400))
def test_eviction_makes_room_with_the_oldest_or_says_that_it_cannot(held, needed, most) -> None:
    gone = to_evict(held, needed, most)
    linked = sum(one.size_bytes for one in held if one.linked)
    if gone is None:
        assert linked + needed > most
        return
    left = [one for one in held if one not in gone]
    assert sum(one.size_bytes for one in left) + needed <= most
    assert not any(one.linked for one in gone)
    newest = max((one.used for one in gone), default=-1)
    assert all(one.used >= newest for one in left if not one.linked)


def test_the_time_of_change_of_a_linked_shard_stays(tmp_path: Path) -> None:
    """A run remembers by it that it has compared the file."""
    cache, source = ShardCache(tmp_path / "cache", 1000), Source()
    file, content = shard(1)
    cache.link(file, tmp_path / "a.shard", source.of(file, content))
    os.utime(tmp_path / "a.shard", ns=(1, 12345))
    cache.hold(file, source.of(file, content))
    assert (tmp_path / "a.shard").stat().st_mtime_ns == 12345
