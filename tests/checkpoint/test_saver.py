import errno
import gc
import logging
import os
import resource
import shutil
import subprocess
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fakes import FakeClock
from longhaul.checkpoint.capture import TrainingState
from longhaul.checkpoint.host_buffers import Staging
from longhaul.checkpoint.loader import load
from longhaul.checkpoint.saver import CheckpointChange, Saver
from longhaul.core import files
from longhaul.core.files import moved
from longhaul.core.units import short_bytes
from longhaul.store.catalogue import catalogue, remove
from longhaul.store.manifest import verify

DEADLINE_S = 30


def always() -> bool:
    return True


def state(fill: float = 1.0, elements: int = 1000) -> TrainingState:
    return TrainingState({"model.w": torch.full((elements,), fill)}, {"trainer": {"draw": 3}})


def saver(folder: Path, still_owner: Callable[[], bool] = always) -> Saver:
    return Saver(folder, attempt=2, still_owner=still_owner, clock=FakeClock())


def saved(writer: Saver, step: int, what: TrainingState) -> list[CheckpointChange]:
    writer.save(step, what)
    writer.wait()
    return writer.poll()


def test_a_save_is_reported_stage_by_stage(tmp_path: Path) -> None:
    changes = saved(saver(tmp_path), 7, state())
    assert [change.kind for change in changes] == ["written", "committed", "verified"]
    assert {change.step for change in changes} == {7}
    (entry,) = catalogue(tmp_path)
    assert changes[-1].data["manifest"] == entry.manifest_sha256 != changes[0].data["manifest"]
    assert changes[-1].data["size_bytes"] == entry.size_bytes
    assert not any(change.data["message"] for change in changes)


def test_a_copy_beside_training_is_waited_for_only_where_the_state_is_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_copy, copy = threading.Event(), Staging.copy

    def held_up(staging: Staging) -> None:
        assert may_copy.wait(DEADLINE_S)
        copy(staging)

    monkeypatch.setattr(Staging, "copy", held_up)
    writer = Saver(tmp_path, attempt=2, still_owner=always, clock=FakeClock(), settled=True)
    live = state(1.5)
    writer.save(7, live)
    assert writer.copying
    assert writer.poll() == []
    may_copy.set()
    writer.settle()
    assert not writer.copying
    live.tensors["model.w"].fill_(9.0)
    writer.wait()
    fresh = state(0.0)
    load(tmp_path / "step-7", fresh)
    assert fresh.tensors["model.w"].eq(1.5).all()


def test_a_state_at_rest_is_written_without_a_copy_and_may_change_once_it_is_written(
    tmp_path: Path,
) -> None:
    at_commit, may_commit = threading.Event(), threading.Event()

    def still_owner() -> bool:
        at_commit.set()
        return may_commit.wait(DEADLINE_S)

    writer = Saver(tmp_path, attempt=2, still_owner=still_owner, clock=FakeClock(), settled=True)
    live = state(1.5)
    writer.save(7, live, at_rest=True)
    assert at_commit.wait(DEADLINE_S)
    assert writer.copying
    assert writer.held_bytes == 0
    may_commit.set()
    writer.settle()
    live.tensors["model.w"].fill_(9.0)
    writer.save(8, live)
    writer.settle()
    live.tensors["model.w"].fill_(4.0)
    writer.wait()
    for step, value in ((7, 1.5), (8, 9.0)):
        fresh = state(0.0)
        load(tmp_path / f"step-{step}", fresh)
        assert fresh.tensors["model.w"].eq(value).all()
    assert live.tensors["model.w"].eq(4.0).all()


def test_a_copy_that_fails_is_told_to_whoever_changes_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(staging: Staging) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Staging, "copy", fails)
    writer = Saver(tmp_path, attempt=2, still_owner=always, clock=FakeClock(), settled=True)
    writer.save(7, state())
    with pytest.raises(MemoryError, match="no room"):
        writer.settle()
    writer.settle()
    assert catalogue(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_saved_is_the_state_at_the_call_whatever_training_does_next(tmp_path: Path) -> None:
    may_go_on = threading.Event()
    writer = saver(tmp_path, lambda: may_go_on.wait(DEADLINE_S))
    live = state(1.5)
    writer.save(7, live)
    live.tensors["model.w"].fill_(9.0)
    live.facts["trainer"]["draw"] = 99
    may_go_on.set()
    writer.close()
    fresh = state(0.0)
    assert load(tmp_path / "step-7", fresh).facts == {"trainer": {"draw": 3}}
    assert torch.equal(fresh.tensors["model.w"], torch.full((1000,), 1.5))


def test_saving_returns_at_once_and_the_next_save_waits_for_it(tmp_path: Path) -> None:
    clock = FakeClock()
    running = asked = 0
    at_commit, may_commit = threading.Event(), threading.Event()

    def still_owner() -> bool:
        nonlocal running, asked
        asked += 1
        if asked % 2:
            return True  # before it begins; the second time it is to be committed
        running += 1
        assert running == 1
        at_commit.set()
        assert may_commit.wait(DEADLINE_S)
        clock.advance(4.0)
        running -= 1
        return True

    writer = Saver(tmp_path, attempt=2, still_owner=still_owner, clock=clock)
    assert writer.save(1, state(1.0)) == 0.0
    assert at_commit.wait(DEADLINE_S)
    assert [change.kind for change in writer.poll()] == ["written"]
    release = threading.Timer(0.05, may_commit.set)
    release.start()
    assert writer.save(2, state(2.0)) == 4.0
    assert [change.step for change in writer.poll()][:2] == [1, 1]
    writer.close()
    release.join()
    for step in (1, 2):
        fresh = state(0.0)
        load(tmp_path / f"step-{step}", fresh)
        assert set(fresh.tensors["model.w"].tolist()) == {float(step)}


@pytest.mark.parametrize("moves", [True, False])
def test_a_slow_save_gives_signs_of_life_and_one_that_hangs_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    monkeypatch.setattr("longhaul.checkpoint.saver._LOOK_EVERY_S", 0.01)
    written, may_end, signs, looks = threading.Event(), threading.Event(), [], []
    real = Saver._stages

    def slowly(self: Saver, step: int, facts: bytes):
        yield from real(self, step, facts)
        written.set()
        while not may_end.wait(0.001):
            if moves:
                moved(1)

    def heard() -> None:
        signs.append(writer._meter.total)
        if moves and len(signs) >= 5:
            may_end.set()

    join = threading.Thread.join

    def looked(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        if written.is_set():
            looks.append(len(signs))
        if not moves and len(looks) == 20:
            may_end.set()

    monkeypatch.setattr(Saver, "_stages", slowly)
    writer = saver(tmp_path)
    writer.save(7, state())
    monkeypatch.setattr(threading.Thread, "join", looked)
    writer.wait(heard)
    monkeypatch.undo()
    assert writer.poll()[-1].kind == "verified"
    if moves:
        assert len(signs) >= 5
        assert signs == sorted(set(signs)), "each one for bytes that came since the last"
    else:
        assert len(set(looks[2:])) == 1, "nothing was written any more"


def test_bytes_are_counted_as_they_are_written_and_read_back(tmp_path: Path) -> None:
    writer = saver(tmp_path)
    (_, _, last) = saved(writer, 7, state(elements=500_000))
    assert writer._meter.total >= 2 * last.data["size_bytes"]


@pytest.mark.slow
def test_memory_stays_flat_over_fifty_saves(tmp_path: Path) -> None:
    writer = saver(tmp_path)
    what = state(elements=1 << 20)
    # pytest keeps what is logged for its report, and that would be counted.
    logging.disable()
    saved(writer, 1, what)
    places = {tensor.data_ptr() for tensor in writer._staging.filled().values()}
    tracemalloc.start()
    try:
        peaks = []
        for _ in range(50):
            tracemalloc.reset_peak()
            assert saved(writer, 1, what)[-1].kind == "verified"
            gc.collect()  # Cycles wait for a collector that comes when it likes.
            peaks.append(tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
        logging.disable(logging.NOTSET)
    assert places == {tensor.data_ptr() for tensor in writer._staging.filled().values()}
    # No second copy of the tensors' 4 MiB is made on the way, and nothing piles up.
    assert max(peak for _, peak in peaks) < 4 << 20
    assert peaks[-1][0] - peaks[5][0] < 100_000


def test_a_fenced_owner_leaves_nothing_and_is_told(tmp_path: Path) -> None:
    fenced_meanwhile = iter([True, False])
    writer = saver(tmp_path, lambda: next(fenced_meanwhile))
    changes = saved(writer, 7, state())
    assert [change.kind for change in changes] == ["written", "fenced"]
    assert "another attempt owns this run" in changes[-1].data["message"]
    assert list(tmp_path.iterdir()) == []


def test_who_owns_nothing_any_more_neither_makes_a_folder_nor_touches_anothers_save(
    tmp_path: Path,
) -> None:
    gone = tmp_path / "run" / "checkpoints"
    (change,) = saved(saver(gone), 7, state())
    assert change.kind == "failed"
    assert not gone.parent.exists()
    theirs = tmp_path / ".step-7.attempt-2.partial"  # another run's, begun in the same place
    theirs.mkdir()
    (change,) = saved(saver(tmp_path, lambda: False), 7, state())
    assert change.kind == "fenced"
    assert list(tmp_path.iterdir()) == [theirs]


def test_facts_that_json_cannot_hold_are_refused_in_the_callers_own_thread(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        saver(tmp_path).save(7, TrainingState({}, {"trainer": object()}))


def test_whatever_else_goes_wrong_is_reported_and_the_next_save_works(tmp_path: Path) -> None:
    def broken() -> bool:
        raise ZeroDivisionError("the fence is broken")

    answers = iter([always, broken, always, always])  # before a save begins, before its commit
    writer = saver(tmp_path, lambda: next(answers)())
    change = saved(writer, 7, state())[-1]
    assert change.kind == "failed"
    assert "ZeroDivisionError: the fence is broken; no earlier one exists" in change.data["message"]
    assert list(tmp_path.iterdir()) == []
    assert saved(writer, 8, state())[-1].kind == "verified"


def test_a_state_that_is_no_tensor_is_reported_in_words(tmp_path: Path) -> None:
    bad = TrainingState({"w": torch.ones(2, dtype=torch.complex64)}, {})
    change = saved(saver(tmp_path), 7, bad)[-1]
    assert change.kind == "failed"
    assert "w is torch.complex64" in change.data["message"]
    assert "Traceback" not in change.data["message"]


def test_a_medium_that_gives_back_other_bytes_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_file = files.sha256_of

    def forgetful(path: Path, past_page_cache: bool = False) -> str:
        assert past_page_cache
        if path.suffix == ".safetensors":
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        return hash_file(path, past_page_cache)

    monkeypatch.setattr("longhaul.store.manifest.sha256_of", forgetful)
    changes = saved(saver(tmp_path), 7, state())
    assert [change.kind for change in changes] == ["written", "committed", "damaged"]
    assert "__0_0.safetensors" in changes[-1].data["message"]


# A full disk, three ways: a small file system, one that says it has room, a limit on file sizes.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=7m", "longhaul-test", str(folder)],
        capture_output=True, text=True, check=False,
    ) if shutil.which("mount") else None  # fmt: skip
    if mounted is None or mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip() if mounted else 'no mount'}")
    try:
        yield folder / "checkpoints"
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("noticed", ["beforehand", "in the middle"])
def test_a_full_disk_costs_one_checkpoint_and_nothing_else(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    if noticed == "in the middle":
        monkeypatch.setattr("longhaul.checkpoint.write._require_room", lambda *_: None)
        (small_disk.parent / "ballast").write_bytes(bytes(4 << 20))
    writer = saver(small_disk)
    assert saved(writer, 100, state(1.0, 400_000))[-1].kind == "verified"
    change = saved(writer, 200, state(2.0, 400_000))[-1]
    assert change.kind == "failed"
    free = short_bytes(shutil.disk_usage(small_disk).free)
    assert change.data["message"] == (
        f"checkpoint step-200 was not saved: no space left on {small_disk} (needs 1.61 MB beside "
        f"4.19 MB that stay free for the journal; {free} free); step-100 is intact; "
        "the next save tries again"
    )
    assert [path.name for path in small_disk.iterdir()] == ["step-100"]
    verify(small_disk / "step-100")

    # The same step again must not cost the old one either.
    assert saved(writer, 100, state(3.0, 400_000))[-1].kind == "failed"
    fresh = state(0.0, 400_000)
    load(small_disk / "step-100", fresh)
    assert set(fresh.tensors["model.w"].tolist()) == {1.0}

    shutil.rmtree(small_disk / "step-100")
    assert saved(writer, 300, state(2.0, 400_000))[-1].kind == "verified"


@pytest.mark.parametrize("noticed", ["beforehand", "in the middle"])
def test_on_a_full_disk_an_older_checkpoint_gives_way_and_the_save_is_tried_again(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    if noticed == "in the middle":
        monkeypatch.setattr("longhaul.checkpoint.write._require_room", lambda *_: None)
        (small_disk.parent / "ballast").write_bytes(bytes(4 << 20))
    asked: list[int] = []

    def make_room(needed: int) -> bool:
        asked.append(needed)
        older = small_disk / "step-100"
        if older.exists():
            remove(older)
            return True
        return False

    clock = FakeClock()
    writer = Saver(
        small_disk, attempt=2, still_owner=always, clock=clock, make_room=make_room
    )  # fmt: skip
    assert saved(writer, 100, state(1.0, 400_000))[-1].kind == "verified"
    assert asked == []
    changes = saved(writer, 200, state(2.0, 400_000))
    assert [change.kind for change in changes] == ["written", "committed", "verified"]
    assert [path.name for path in small_disk.iterdir()] == ["step-200"]
    # Nothing is left that could give way: the newest one stays.
    assert saved(writer, 300, state(3.0, 400_000))[-1].kind == "failed"
    assert len(asked) == 2
    assert [path.name for path in small_disk.iterdir()] == ["step-200"]
    verify(small_disk / "step-200")


def test_a_write_that_stops_in_the_middle_is_a_failed_save(tmp_path: Path) -> None:
    writer = saver(tmp_path)
    assert saved(writer, 100, state())[-1].kind == "verified"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        change = saved(writer, 200, state(elements=500_000))[-1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert change.kind == "failed"
    assert os.strerror(errno.EFBIG) in change.data["message"]
    assert "step-100 is intact" in change.data["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-100"]
    assert saved(writer, 200, state(elements=500_000))[-1].kind == "verified"


def test_a_folder_that_cannot_be_made_is_a_failed_save(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    change = saved(saver(tmp_path / "checkpoints"), 7, state())[-1]
    assert change.kind == "failed"
    assert str(tmp_path / "checkpoints") in change.data["message"]
