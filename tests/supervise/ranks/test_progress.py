import os
import time
from pathlib import Path

from fakes import FakeClock
from longhaul.core.clocks import TimeBuckets
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.ranks.progress import ProgressFile, progress_path, read_progress


def test_what_a_rank_says_is_read_back_and_every_word_is_another_sign(tmp_path: Path) -> None:
    path = progress_path(RunFolder(tmp_path), 3)
    file = ProgressFile(path)
    first = read_progress(path)
    assert first is not None
    assert (first.phase, first.step) == ("start-up", 0)
    file.enter("evaluation", 1_234_567)
    file.enter("step")
    last = read_progress(path)
    assert (last.phase, last.step) == ("step", 1_234_567)
    assert last.sign > first.sign
    assert last.monotonic >= first.monotonic
    assert path.read_text().count("\n") == 1, "the line is written over in place"


def test_a_short_line_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "0.progress")
    file.enter("evaluation", 10**15)
    file.enter("step", 1)
    assert read_progress(tmp_path / "0.progress").step == 1


def test_no_trouble_with_the_file_reaches_the_rank(tmp_path: Path) -> None:
    file = ProgressFile(Path("/proc/no/such/0.progress"))
    file.enter("step", 1)
    file.close()
    (tmp_path / "torn").write_text("step 1 2")
    (tmp_path / "strange").write_text("lunch 1 2 3.0 4.0")
    for name in ("none", "torn", "strange"):
        assert read_progress(tmp_path / name) is None


def test_the_books_of_time_tell_the_phase(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    path = tmp_path / "0.progress"
    file = ProgressFile(path)
    file.reach(7)
    signs = []
    for bucket, phase in (
        ("start-up", "start-up"), ("training", "step"), ("data_wait", "step"),
        ("checkpoint_stall", "save"), ("evaluation", "evaluation"), ("compile", "compile"),
    ):  # fmt: skip
        file.track(bucket)
        said = read_progress(path)
        assert (said.phase, said.step) == (phase, 7)
        signs.append(said.sign)
    assert signs[2] == signs[1], "within a step nothing more is written"


def test_books_tell_who_watches_them_what_they_are_switched_to() -> None:
    seen = []
    time_buckets = TimeBuckets(FakeClock(), "restart", watcher=seen.append)
    with time_buckets.track("evaluation"):
        pass
    time_buckets.switch("training")
    time_buckets.drain()
    assert seen == ["evaluation", "restart", "training"]


def test_a_long_phase_gives_signs_of_life_where_the_books_say_so(
    tmp_path: Path, monkeypatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = ProgressFile(tmp_path / "0.progress")
    time_buckets = TimeBuckets(FakeClock(), "training", watcher=file.track)
    with time_buckets.track("evaluation"):
        signs = []
        for _ in range(3):
            now[0] += 5.0
            time_buckets.alive()
            said = read_progress(tmp_path / "0.progress")
            assert said is not None
            signs.append((said.phase, said.sign))
    file.close()
    first = signs[0][1]
    assert signs == [("evaluation", first + n) for n in range(3)]


def test_a_thousand_signs_in_a_moment_are_written_once(tmp_path: Path, monkeypatch) -> None:
    """A tiny model's micro-batches take less time than a write; it must not pay for each."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    written = []
    monkeypatch.setattr(os, "pwrite", lambda _, line, at: written.append(line))
    file = ProgressFile(tmp_path / "0.progress")
    time_buckets = TimeBuckets(FakeClock(), "training", watcher=file.track)
    time_buckets.alive()
    written.clear()
    for _ in range(1000):
        now[0] += 0.0005
        time_buckets.alive()
    assert 1 <= len(written) <= 5
