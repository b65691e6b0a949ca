"""Prepared text through a store: whole or not there, whatever goes wrong."""

import hashlib
import json
import shutil
import threading
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.core.errors import DataError, NeedsPerson
from longhaul.data.dataset import MANIFEST, open_dataset
from longhaul.data.prepare import prepare
from longhaul.data.transport import Transfer, progress_line, pull, push
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import Pace, Patience, StoreError, Throttle

QUICK = Patience(answer_s=5, first_pause_s=0.001, longest_pause_s=0.002)


def quiet(_: str) -> None:
    pass


@pytest.fixture
def text(tmp_path: Path, recipe_for) -> Path:
    """A prepared folder of several files."""
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"{name} {n} " * 40 for n in range(60)))
    sources = [tmp_path / f"{name}.txt" for name in ("one", "two", "three")]
    return prepare(recipe_for(sources), tmp_path / "a", quiet).folder


def store(tmp_path: Path, text: Path, **more) -> StoreFiles:
    return StoreFiles(str(tmp_path / "store" / text.name), patience=QUICK, **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


def test_a_text_that_is_pushed_and_pulled_is_the_same(tmp_path: Path, text: Path) -> None:
    sent = push(text, store(tmp_path, text), 3, RealClock(), quiet)
    assert sent.files == len(contents(text)) - 1
    came = pull(store(tmp_path, text), text.name, tmp_path / "b", 3, RealClock(), quiet)
    assert contents(tmp_path / "b" / text.name) == contents(text)
    assert open_dataset(tmp_path / "b" / text.name).identity == open_dataset(text).identity
    assert (came.files, came.size_bytes) == (sent.files, sent.size_bytes)
    assert [p.name for p in (tmp_path / "b").iterdir()] == [text.name], "nothing is left beside it"


def test_what_is_there_is_not_brought_again(tmp_path: Path, text: Path) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    again = push(text, store(tmp_path, text), 3, RealClock(), quiet)
    assert str(again) == "all of it was there"
    assert pull(store(tmp_path, text), text.name, text.parent, 3, RealClock(), quiet).files == 0


def test_what_somebody_has_removed_from_the_store_is_sent_again(tmp_path, text) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    shard = next((tmp_path / "store" / text.name).glob("*.shard"))
    shard.unlink()
    assert push(text, store(tmp_path, text), 3, RealClock(), quiet).files == 1
    assert shard.read_bytes() == (text / shard.name).read_bytes()


def test_a_push_that_is_cut_off_leaves_no_text_and_goes_on(tmp_path, text, monkeypatch) -> None:
    files, sent = store(tmp_path, text), []
    send = files.send

    def cut(source, path, file, growing=False) -> None:
        if len(sent) == 3:
            raise StoreError("cut")
        send(source, path, file, growing)
        sent.append(path)

    monkeypatch.setattr(files, "send", cut)
    with pytest.raises(StoreError, match="cut"):
        push(text, files, 1, RealClock(), quiet)
    with pytest.raises(DataError, match="no prepared text lies there"):
        pull(store(tmp_path, text), text.name, tmp_path / "b", 1, RealClock(), quiet)
    left = len(contents(text)) - 1 - 3
    assert push(text, store(tmp_path, text), 1, RealClock(), quiet).files == left


def test_a_pull_that_is_cut_off_shows_no_text_and_goes_on(tmp_path, text, monkeypatch) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    files, came = store(tmp_path, text), []
    fetch = files.fetch

    def cut(path, target, file, say) -> None:
        if len(came) == 2:
            raise StoreError("cut")
        fetch(path, target, file, say)
        came.append(path)

    monkeypatch.setattr(files, "fetch", cut)
    with pytest.raises(StoreError, match="cut"):
        pull(files, text.name, tmp_path / "b", 1, RealClock(), quiet)
    assert not (tmp_path / "b" / text.name).exists()
    whole = sum(len(c) for n, c in contents(text).items() if n != MANIFEST)
    again = pull(store(tmp_path, text), text.name, tmp_path / "b", 1, RealClock(), quiet)
    assert 0 < again.size_bytes < whole
    assert contents(tmp_path / "b" / text.name) == contents(text)


def test_what_came_of_a_text_that_was_replaced_meanwhile_does_not_stay(tmp_path, text) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    coming = tmp_path / "b" / f".pulling-{text.name}"
    coming.mkdir(parents=True)
    shard = next(text.glob("*.shard"))
    (coming / "09-gone-00000.shard").write_bytes(b"of the other one")
    (coming / shard.name).write_bytes(b"of the other one too")
    pull(store(tmp_path, text), text.name, tmp_path / "b", 3, RealClock(), quiet)
    assert contents(tmp_path / "b" / text.name) == contents(text)


def test_two_that_pull_one_text_at_once_bring_it_once(tmp_path: Path, text: Path) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    done: list[int] = []

    def bring() -> None:
        files = store(tmp_path, text)
        done.append(pull(files, text.name, tmp_path / "b", 2, RealClock(), quiet).files)

    threads = [threading.Thread(target=bring) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == [0, 0, 0, len(contents(text)) - 1]


def test_a_flipped_byte_in_the_store_never_becomes_a_text(tmp_path: Path, text: Path) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    shard = next((tmp_path / "store" / text.name).glob("*.shard"))
    content = bytearray(shard.read_bytes())
    content[-9] ^= 1
    shard.write_bytes(content)
    with pytest.raises(StoreError, match="differ from its manifest"):
        pull(store(tmp_path, text), text.name, tmp_path / "b", 3, RealClock(), quiet)
    assert not (tmp_path / "b" / text.name).exists()


def test_a_flipped_byte_here_is_not_sent(tmp_path: Path, text: Path) -> None:
    shard = next(text.glob("*.shard"))
    content = bytearray(shard.read_bytes())
    content[-9] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match="prepare it again"):
        push(text, store(tmp_path, text), 3, RealClock(), quiet)
    assert not (tmp_path / "store" / text.name / MANIFEST).exists()


def test_another_text_of_the_name_is_left_alone(tmp_path: Path, text: Path) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    other = tmp_path / "other" / text.name
    shutil.copytree(text, other)
    manifest = json.loads((other / MANIFEST).read_bytes())
    manifest["sources"][0]["weight"] = 0.5
    (other / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="another text of this name lies there"):
        push(other, store(tmp_path, text), 3, RealClock(), quiet)
    with pytest.raises(DataError, match="another text of this name is here"):
        pull(store(tmp_path, text), text.name, tmp_path / "other", 3, RealClock(), quiet)


@pytest.mark.parametrize("name", ["../x.shard", "a/b.shard", ".hidden", MANIFEST, ""])
def test_a_manifest_of_a_stranger_writes_nowhere_else(tmp_path, text, name) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    path = tmp_path / "store" / text.name / MANIFEST
    manifest = json.loads(path.read_bytes())
    manifest["sources"][0]["train"][0]["file"] = name
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="is no file of a text"):
        pull(store(tmp_path, text), text.name, tmp_path / "b", 3, RealClock(), quiet)
    assert not (tmp_path / "b").exists()


def test_what_is_no_shard_never_becomes_a_text_though_its_hash_is_right(tmp_path, text) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    path = tmp_path / "store" / text.name / MANIFEST
    manifest = json.loads(path.read_bytes())
    facts, junk = manifest["sources"][0]["train"][0], b"no shard"
    facts |= {"bytes": len(junk), "sha256": hashlib.sha256(junk).hexdigest()}
    (path.parent / facts["file"]).write_bytes(junk)
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="not a shard"):
        pull(store(tmp_path, text), text.name, tmp_path / "b", 3, RealClock(), quiet)
    assert not (tmp_path / "b" / text.name).exists()


def test_a_disk_without_room_is_found_out_before_the_first_byte(
    tmp_path: Path, text: Path, monkeypatch
) -> None:
    push(text, store(tmp_path, text), 3, RealClock(), quiet)
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr("longhaul.data.transport.shutil.disk_usage", lambda _: usage)
    with pytest.raises(NeedsPerson, match="goes on where it was"):
        pull(store(tmp_path, text), text.name, tmp_path / "b", 3, RealClock(), quiet)
    assert not list((tmp_path / "b").glob("**/*.shard"))


def test_streams_share_the_ceiling(tmp_path: Path, text: Path, monkeypatch) -> None:
    """Every piece waits as if its stream had its part of the rate alone."""
    waits: list[float] = []
    throttle = Throttle(Pace(most_bytes_per_s=1e5))
    monkeypatch.setattr(throttle, "wait", waits.append)
    push(text, store(tmp_path, text, throttle=throttle), 1, RealClock(), quiet)
    size = sum(len(content) for content in contents(text).values())
    assert throttle.passed_bytes == 2 * size
    assert sum(waits) == pytest.approx(throttle.passed_bytes / 1e5, rel=0.2)


def test_the_line_of_progress_is_what_was_moved() -> None:
    line = progress_line(1_000_000_000, 4_000_000_000, 10.0, "fetched")
    assert line == "data: 1 GB of 4 GB fetched, 100.0 MB/s, 30.0 s left"
    assert progress_line(0, 10, 0.0, "fetched").endswith("0.0 MB/s, ending")
    assert str(Transfer(2, 3_000_000, 2.0)) == "2 files, 3 MB in 2.0 s (1.5 MB/s)"
