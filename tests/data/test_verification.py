import json
import threading

import pytest

from fakes import FakeClock
from longhaul.core.errors import DataError, ExitCode
from longhaul.data import verification as verification_module
from longhaul.data.prepare import prepare
from longhaul.data.verification import MEMORY, Verification, verifying


@pytest.fixture
def folder(tmp_path, recipe_for):
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 2000)
    recipe = recipe_for(tmp_path / "text.txt")
    return prepare(recipe, tmp_path / "prepared", lambda _: None).folder


def shard(folder):
    return max(folder.glob("*.shard"), key=lambda path: path.stat().st_size)


def change(path, position=-100):
    """Other bytes of the same size, as a bad medium or a careless program leaves them."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def read_by(verification, monkeypatch):
    """Names of the files that are read from now on."""
    names = []
    sha256 = Verification._sha256

    def noted(self, path, rest):
        names.append(path.name)
        return sha256(self, path, rest)

    monkeypatch.setattr(Verification, "_sha256", noted)
    return names


def test_a_changed_token_is_found_before_the_first_step_and_the_file_named(folder):
    change(shard(folder))
    with pytest.raises(DataError) as wrong, verifying(folder, folder, print):
        pytest.fail("it went on")
    assert str(shard(folder)) in wrong.value.message
    assert f"delete {folder}" in wrong.value.remedy
    assert wrong.value.exit_code is ExitCode.DATA_WRONG


def test_what_is_too_much_to_wait_for_is_found_beside_training(folder):
    change(shard(folder))
    verification = Verification(folder, at_once=0)
    said = []
    verification.begin(said.append)
    verification._thread.join()
    with pytest.raises(DataError, match=shard(folder).name):
        verification.raise_if_wrong()
    assert "beside training" in said[0]


def test_what_was_compared_is_not_read_again_until_it_changes(folder, tmp_path, monkeypatch):
    with verifying(folder, tmp_path, print) as first:
        first.raise_if_wrong()
    names = read_by(first, monkeypatch)
    with verifying(folder, tmp_path, print):
        assert names == []
    change(shard(folder))
    with pytest.raises(DataError), verifying(folder, tmp_path, print):
        pass
    assert names == [shard(folder).name]


def test_beside_data_that_is_read_only_the_run_remembers(folder, tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (folder / MEMORY).mkdir()  # cannot be opened as a file
    with verifying(folder, run, print) as first:
        assert first.left == []
    names = read_by(first, monkeypatch)
    with verifying(folder, run, print):
        assert names == []


def test_a_memory_of_nonsense_remembers_nothing(folder, monkeypatch):
    good = {"name": "x", "size_bytes": 1, "mtime_ns": 1, "inode": 1, "sha256": "x", "more": 1}
    lines = [b"\0" * 100, b"[1]", b"null", b'{"name": []', json.dumps(good).encode(), b'"x"']
    (folder / MEMORY).write_bytes(b"\n".join(lines) + b"\n")
    verification = Verification(folder, (folder / MEMORY,))
    assert len(verification.left) == verification.num_files


def test_a_restart_goes_on_where_the_last_one_stopped(folder, tmp_path, monkeypatch):
    """The first is told to stop in the middle of its second file."""
    stopped, reading = threading.Event(), threading.Event()
    verification = Verification(folder, (folder / MEMORY,), at_once=0)
    second = verification.left[1].name
    sha256 = Verification._sha256

    def slow(self, path, rest):
        if path.name == second:
            reading.set()
            stopped.wait()
        return sha256(self, path, rest)

    with monkeypatch.context() as slowly:
        slowly.setattr(Verification, "_sha256", slow)
        slowly.setattr(verification_module, "_CHUNK", 64)
        verification.begin(lambda _: None)
        assert reading.wait(30)
        verification._stop.set()
        stopped.set()
        verification.close()
    left = Verification(folder, (folder / MEMORY,)).left
    assert left[0].name == second
    assert len(left) == verification.num_files - 1


def test_it_rests_as_long_as_it_reads(folder, monkeypatch):
    class Slow(FakeClock):
        def monotonic(self):
            self.advance(3.0)
            return super().monotonic()

    rests = []
    verification = Verification(folder, at_once=0, clock=Slow())
    monkeypatch.setattr(verification._stop, "wait", rests.append)
    verification.begin(lambda _: None)
    verification._thread.join()
    assert set(rests) == {3.0}
    assert len(rests) >= verification.num_files


def test_a_file_that_cannot_be_read_now_ends_no_training_and_is_told(folder, tmp_path, monkeypatch):
    def refuse(self, path, rest):
        raise OSError(116, "Stale file handle")

    said = []
    with monkeypatch.context() as away:
        away.setattr(Verification, "_sha256", refuse)
        with verifying(folder, tmp_path, said.append) as verification:
            verification.raise_if_wrong()
        with pytest.raises(DataError, match="Stale file handle"):
            Verification(folder).compare_all()
    assert "the next start goes on with them" in said[-1]
    assert len(Verification(folder, (folder / MEMORY,)).left) == verification.num_files
