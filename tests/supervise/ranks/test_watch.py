import json
from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.config.recover import SuperviseSection
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.supervise.ranks.progress import Phase, Progress
from longhaul.supervise.ranks.watchdog import Rank, Watch, read_silences, silences_path

SETTINGS = SuperviseSection()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = create_run(tmp_path / "run", FakeClock())
    folder.workers.mkdir(exist_ok=True)
    return folder


def rank(step: int, sign: int, at: float, phase: Phase = "step") -> Rank:
    return Rank(0, "host", Progress(phase, step, sign, at, at))


def slow_steps(watch: Watch) -> None:
    """One step of 48 s in silence."""
    watch.look(100.0, [rank(1, 1, 100.0)])
    watch.look(147.9, [rank(1, 1, 100.0)])
    watch.look(148.1, [rank(2, 2, 148.0)])


def test_what_was_learned_outlives_attempts_and_supervisors(folder: RunFolder) -> None:
    first = Watch(folder, SETTINGS)
    slow_steps(first)  # and is killed: nothing is closed
    for watch in (first, Watch(folder, SETTINGS)):
        watch.blink(1000.0)
        verdict = watch.look(1060.0, [rank(7, 1, 1010.0)])
        assert not verdict.hung
        assert verdict.deadline_s == pytest.approx(480.0)


def test_what_has_become_less_is_kept_too(folder: RunFolder) -> None:
    watch = Watch(folder, SETTINGS)
    slow_steps(watch)
    for n in range(1, 80):
        watch.look(149.0 + n, [rank(2 + n, 2 + n, 149.0 + n)])
    watch.close()
    assert read_silences(silences_path(folder)) == {"step": pytest.approx(1.0, abs=0.2)}


def test_quick_steps_write_nothing(folder: RunFolder) -> None:
    watch = Watch(folder, SETTINGS)
    for n in range(100):
        watch.look(100.0 + n / 10, [rank(n, n, 100.0 + n / 10)])
    watch.close()
    assert not silences_path(folder).exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 4000, '{"format": 9, "longest_s": {"step": 9}}', '{"format": 1}',
     json.dumps({"format": 1, "longest_s": {"step": "9", "save": -1.0, "lunch": 4.0}}),
     '{"format": 1, "longest_s": {"step": Infinity, "save": NaN}}', "\0" * 9000],
)  # fmt: skip
def test_a_damaged_file_is_as_none(folder: RunFolder, text: str) -> None:
    silences_path(folder).write_text(text)
    assert read_silences(silences_path(folder)) == {}
