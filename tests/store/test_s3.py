"""The remote tier against an S3 server of our own on this machine."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.store.catalogue import catalogue
from longhaul.store.fetching import bring_here, newest_of_all
from longhaul.store.manifest import verify
from longhaul.store.remote import RemoteTier
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import Patience, StoreError
from longhaul.store.uploader import Uploader

DEADLINE_S = 60
ADDRESS = "s3://bucket/runs/quickstart"
PATIENCE = Patience(answer_s=20, first_pause_s=0.05, longest_pause_s=0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A moto server as a process of its own, ended by its number."""

    def __init__(self) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert self.process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not answer"
            try:
                urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                    f"http://127.0.0.1:{self.port}/moto-api/", timeout=5
                ).close()
                return
            except OSError:
                time.sleep(0.02)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("moto.server")
    server = Server()
    yield server
    server.end()


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch):
    s3fs = pytest.importorskip("s3fs")
    for name, value in {
        "NO_PROXY": "127.0.0.1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem(use_listings_cache=False)
    if not system.exists("bucket"):
        system.mkdir("bucket")
    yield system
    if system.exists("bucket/runs"):
        system.rm("bucket/runs", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def sent(there: RemoteTier, folder: Path) -> bool:
    """Whether an attempt has done it; each is bounded by its own deadlines."""
    try:
        there.send(folder, lambda: True)
    except StoreError:
        return False
    return True


def tier() -> RemoteTier:
    return RemoteTier(StoreFiles(ADDRESS, patience=PATIENCE))


def test_checkpoints_go_to_a_bucket_and_come_back_byte_by_byte(bucket, tmp_path, fill) -> None:
    big = os.urandom(19 << 20)  # three parts of an upload
    fill(tmp_path / "run" / "step-10", 10, weights=b"0123", empty=b"")
    fill(tmp_path / "run" / "step-20", 20, weights=big)
    there = tier()
    uploader = Uploader(
        there, still_owner=lambda: True, clock=RealClock(), keep_last=2, keep_every=0
    )
    for checkpoint in catalogue(tmp_path / "run"):
        uploader.offer(checkpoint, {})
    assert uploader.settle(DEADLINE_S), list(uploader.poll())
    uploader.close()
    fresh = tier()
    assert [entry.step for entry in fresh.checkpoints()] == [10, 20]
    back = tmp_path / "back"
    for copy in newest_of_all([], [(fresh, fresh.checkpoints())], {}):
        path = bring_here(copy.checkpoint, copy.tier, back, 1, lambda: True, print)
        verify(path)
        original = tmp_path / "run" / path.name
        for file in original.iterdir():
            assert (path / file.name).read_bytes() == file.read_bytes()


def test_an_upload_in_parts_that_is_cut_off_leaves_nothing_and_is_gone_on_with(
    bucket, tmp_path, fill, monkeypatch
) -> None:
    folder = fill(tmp_path / "step-10", 10, a=b"first", big=os.urandom(19 << 20))
    there, pieces = tier(), 0
    rest = there.files.throttle.rest

    def cut(size_bytes: int, took_s: float) -> None:
        nonlocal pieces
        pieces += size_bytes > 1 << 20
        if pieces == 4:
            raise StoreError("the connection is cut")
        rest(size_bytes, took_s)

    monkeypatch.setattr(there.files.throttle, "rest", cut)
    with pytest.raises(StoreError, match="cut"):
        there.send(folder, lambda: True)
    assert there.checkpoints() == []
    (place,) = bucket.ls("bucket/runs/quickstart", detail=False)
    names = [path.rpartition("/")[2] for path in bucket.ls(place, detail=False)]
    assert "big.bin" not in names, "a truncated object was committed"
    assert bucket.call_s3("list_multipart_uploads", Bucket="bucket").get("Uploads", []) == []
    sent = tier().send(folder, lambda: True)
    assert sent == sum((folder / name).stat().st_size for name in ("big.bin", "manifest.json"))
    assert [entry.step for entry in there.checkpoints()] == [10]


def test_removing_and_what_was_cut_off(bucket, tmp_path, fill) -> None:
    there = tier()
    for step in (1, 2):
        there.send(fill(tmp_path / f"step-{step}", step, a=b"a"), lambda: True)
    first, second = there.checkpoints()
    bucket.rm_file(f"bucket/runs/quickstart/{first.path}/manifest.json")
    assert [entry.step for entry in there.checkpoints()] == [2]
    there.remove_unfinished(2, set())
    there.remove(second)
    assert bucket.find("bucket/runs/quickstart") == []
    assert there.checkpoints() == []


def test_a_bucket_that_does_not_exist_is_an_error_not_a_new_bucket(bucket, tmp_path, fill) -> None:
    nowhere = RemoteTier(StoreFiles("s3://nobody/runs/x", patience=PATIENCE))
    with pytest.raises(StoreError, match=r"s3://nobody/runs/x"):
        nowhere.send(fill(tmp_path / "step-1", 1), lambda: True)
    assert not bucket.exists("nobody")


def test_a_server_that_is_gone_and_comes_back(tmp_path, fill, monkeypatch) -> None:
    pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = Server()
    for name, value in {
        "NO_PROXY": "127.0.0.1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        s3fs.S3FileSystem().mkdir("bucket")
        server.process.send_signal(19)  # SIGSTOP: it takes connections and says nothing
        short = Patience(answer_s=0.5, first_pause_s=0.05, longest_pause_s=0.1)
        there = RemoteTier(StoreFiles(ADDRESS, patience=short))
        with pytest.raises(StoreError, match="no answer within"):
            there.send(fill(tmp_path / "step-1", 1), lambda: True)
        server.process.send_signal(18)
        assert any(sent(there, tmp_path / "step-1") for _ in range(DEADLINE_S))
        assert [entry.step for entry in tier().checkpoints()] == [1]
    finally:
        server.end()
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_part_of_a_checkpoint_is_read_where_it_lies(bucket, tmp_path, fill) -> None:
    content = bytes(range(256)) * (1 << 16)
    tier().send(fill(tmp_path / "step-7", 7, content=b"x" * 99, a=content), lambda: True)
    files, place = tier().files, f"{tier().checkpoints()[0].path}/a.bin"
    assert files.read_range(place, 300, 900) == content[300:900]
    ranges = [(0, 10), (5_000_000, 9_000_001)]
    files.fetch_ranges(place, tmp_path / "here", len(content), ranges, print)
    here = (tmp_path / "here").read_bytes()
    assert len(here) == len(content)
    assert [here[begin:end] for begin, end in ranges] == [content[b:e] for b, e in ranges]
    assert not any(here[10:5_000_000])
