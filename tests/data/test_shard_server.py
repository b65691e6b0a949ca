"""Shards passed between nodes: each is read from the store once, whatever the number of nodes."""

import http.client
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from longhaul.core.errors import UsageError
from longhaul.data.shard_cache import ShardCache
from longhaul.data.shard_server import PassedShards, fetch_from, home_of, serving
from longhaul.store.manifest import FileEntry, write_listed_file
from longhaul.store.store_files import StoreFiles


def quiet(_: str) -> None:
    pass


@pytest.fixture
def shards(tmp_path: Path) -> list[FileEntry]:
    (tmp_path / "store").mkdir()
    return [
        write_listed_file(tmp_path / "store" / f"{n:02d}.shard", [bytes([n]) * (1000 + n)])
        for n in range(12)
    ]


class CountedStore(StoreFiles):
    """Counts the files that are read from it."""

    reads: Counter[str]

    def fetch(self, path, target, file, say) -> None:
        self.reads[path] += 1
        super().fetch(path, target, file, say)


def node(tmp_path: Path, name: str, reads: Counter[str], nodes, own: str, say=quiet):
    files = CountedStore(str(tmp_path / "store"))
    files.reads = reads
    return PassedShards(ShardCache(tmp_path / name / "cache", 1 << 20), files, nodes, own, say)


def test_three_nodes_read_each_shard_from_the_store_once(tmp_path: Path, shards) -> None:
    reads: Counter[str] = Counter()
    ports = free_ports(3)
    nodes = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        own = []
        for number, port in enumerate(ports):
            one = node(tmp_path, f"node{number}", reads, nodes, nodes[number])
            stack.enter_context(serving(one, shards, "127.0.0.1", port))
            own.append(one)

        def pull(number: int) -> None:
            for file in shards if number % 2 else shards[::-1]:
                own[number].link(file, tmp_path / f"node{number}" / file.name)

        threads = [threading.Thread(target=pull, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert reads == Counter({file.name: 1 for file in shards})
    for number in range(3):
        for file in shards:
            came = tmp_path / f"node{number}" / file.name
            assert came.read_bytes() == (tmp_path / "store" / file.name).read_bytes()


def test_a_home_that_is_gone_costs_a_read_of_the_store(tmp_path: Path, shards) -> None:
    reads, said = Counter(), []
    (port,) = free_ports(1)
    one = node(tmp_path, "a", reads, [f"http://127.0.0.1:{port}"], "", said.append)
    one.link(shards[0], tmp_path / "a" / "x")
    assert reads == Counter({shards[0].name: 1})
    assert "asking the store" in said[0]


def test_a_node_that_gives_other_bytes_is_passed_over(tmp_path: Path, shards) -> None:
    reads, said = Counter(), []
    liar = node(tmp_path, "liar", Counter(), [], "")
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"?" * shards[0].size_bytes)
    liar.path_for_peer = lambda file: wrong  # type: ignore[method-assign]
    with serving(liar, shards, "127.0.0.1", 0) as port:
        one = node(tmp_path, "a", reads, [f"http://127.0.0.1:{port}"], "", said.append)
        one.link(shards[0], tmp_path / "a" / "x")
    assert (tmp_path / "a" / "x").read_bytes() == (tmp_path / "store/00.shard").read_bytes()
    assert "other bytes than its hash says" in said[0]


def test_a_cut_off_shard_is_gone_on_with(tmp_path: Path, shards) -> None:
    file, part = shards[3], tmp_path / "part"
    content = (tmp_path / "store" / file.name).read_bytes()
    part.write_bytes(content[:400])
    moved: list[int] = []
    with serving(node(tmp_path, "a", Counter(), [], ""), shards, "127.0.0.1", 0) as port:
        fetch_from(f"http://127.0.0.1:{port}", file, part, lambda size, _: moved.append(size))
    assert part.read_bytes() == content
    assert sum(moved) == file.size_bytes - 400, "what comes from a node counts for the ceiling too"


def test_nothing_but_shards_of_the_text_is_served(tmp_path: Path, shards) -> None:
    (tmp_path / "a" / "cache").mkdir(parents=True)
    with serving(node(tmp_path, "a", Counter(), [], ""), shards, "127.0.0.1", 0) as port:
        for path in ("/", "/../secret", "/locks/room", f"/{'0' * 64}", f"/{shards[0].name}"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", path)
            assert connection.getresponse().status == 404, path
            connection.close()


def test_a_port_that_is_taken_is_named(tmp_path: Path, shards) -> None:
    one = node(tmp_path, "a", Counter(), [], "")
    with (
        serving(one, shards, "127.0.0.1", 0) as port,
        pytest.raises(UsageError, match=f"127.0.0.1:{port}"),
        serving(one, shards, "127.0.0.1", port),
    ):
        pass


def test_homes_are_spread_and_the_same_on_every_node() -> None:
    nodes = [f"http://10.0.0.{n}:9500" for n in range(4)]
    homes = Counter(home_of(f"{n:064x}", nodes) for n in range(400))
    assert set(homes) == set(nodes)
    assert min(homes.values()) > 60
    assert [home_of(f"{n:064x}", nodes[::-1]) for n in range(50)] == [
        home_of(f"{n:064x}", nodes) for n in range(50)
    ]
    with pytest.raises(UsageError, match="write it like"):
        PassedShards(ShardCache(Path("x"), 1), StoreFiles("x"), ["10.0.0.1:9500"], "", quiet)


def free_ports(count: int) -> list[int]:
    import socket

    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
