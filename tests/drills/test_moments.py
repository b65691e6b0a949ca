import time
from collections import Counter
from pathlib import Path

from drills.moments import PHASES, Moment, random_moments, wait_for
from longhaul.core.records import StepRecord, to_line
from longhaul.logbook.folder import RunFolder

FIRST_STEP = StepRecord(
    attempt=2, segment="1.00", step=1, draw=0, next_draw=1, time=0.0, loss=1.0,
    gradient_norm=1.0, learning_rate=1.0, sequences=1, sequence_length=1,
)  # fmt: skip


def test_every_phase_is_struck_equally_often_and_a_seed_decides_when() -> None:
    moments = random_moments(20, 300, 3.0, seed=1)
    assert Counter(moment.phase for moment in moments) == dict.fromkeys(PHASES, 5)
    assert moments == random_moments(20, 300, 3.0, seed=1)
    assert moments != random_moments(20, 300, 3.0, seed=2)


def test_later_strikes_come_later_and_all_before_the_end() -> None:
    steps = [moment.from_step for moment in random_moments(50, 300, 3.0, seed=3)]
    assert steps == sorted(steps)
    assert 0 <= steps[0] <= steps[-1] < 300


class Starting:
    """A run that makes its first step when it is looked at for the third time."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._looks = folder, 0

    @property
    def running(self) -> bool:
        self._looks += 1
        if self._looks == 3:
            with (self._folder.journal / "000002.pilot.jsonl").open("a") as journal:
                journal.write(to_line(FIRST_STEP) + "\n")
        assert self._looks < 100, "it is not struck although it trains"
        return True


def test_a_start_up_that_is_over_sooner_than_thought_is_struck_at_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.journal.mkdir()
    begun = time.monotonic()
    assert wait_for(Moment("start-up", 0, 60.0), folder, Starting(folder), 120.0)
    assert time.monotonic() < begun + 30.0
