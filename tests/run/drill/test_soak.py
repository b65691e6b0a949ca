from itertools import islice
from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.core.records import StepRecord
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.journal import Journal
from longhaul.run.drill.fault import parse_fault
from longhaul.run.drill.laid import Done, lay, note_done, read_laid
from longhaul.run.drill.soak import Injection, Soak, injections, kinds_for


def test_the_same_seed_gives_the_same_injections() -> None:
    def drawn(seed: int) -> list[Injection]:
        return list(islice(injections(seed, 20.0, kinds_for(True), 4), 200))

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
    names = {injection.faults[0].kind for injection in drawn(7)}
    assert names == set(kinds_for(True))
    mean = sum(injection.pause_s for injection in drawn(7)) / 200
    assert 14 < mean < 27  # within three standard errors of 20
    for injection in drawn(7):
        for fault in injection.faults:
            assert parse_fault(str(fault)) == fault
            assert fault.rank in range(4)


def test_only_faults_that_may_not_change_a_byte_are_drawn_by_themselves() -> None:
    assert not {"nan", "bitflip-weight", "bitflip-grad"} & set(kinds_for(True))
    assert not {"store-gone", "store-hang"} & set(kinds_for(False))


def test_a_wrong_byte_is_followed_by_a_restart_that_reads_it() -> None:
    (injection,) = islice(injections(0, 1.0, ["bitflip-file"], 2), 1)
    assert [fault.kind for fault in injection.faults] == ["bitflip-file", "kill"]
    assert {fault.rank for fault in injection.faults} == {0}


class Played:
    """A run whose steps and faults a test makes."""

    def __init__(
        self, path: Path, *pauses: float, lasting_s: float = 1000.0, steps: int = 10_000
    ) -> None:
        self.folder: RunFolder = create_run(path / "run", FakeClock())
        lay(self.folder)
        ahead = (Injection(pause, (parse_fault("kill@rank1:step0"),)) for pause in (*pauses, 1e9))
        self.clock = FakeClock()
        self.soak = Soak(self.folder, ahead, self.clock, lasting_s, steps)

    def make(self, attempt: int, *numbers: int) -> None:
        """Steps, one a second; the soak looks after each."""
        journal = Journal(self.folder, attempt)
        for number in numbers:
            self.clock.advance(1.0)
            journal.append(
                StepRecord(
                    attempt=attempt, segment="1.00", step=number, draw=number,
                    next_draw=number + 1, time=self.clock.wall(), loss=2.0, gradient_norm=1.0,
                    learning_rate=1e-3, sequences=1, sequence_length=8,
                )
            )  # fmt: skip
            self.soak()
        journal.close()

    @property
    def laid(self) -> list[str]:
        return [str(fault) for fault in read_laid(self.folder)]

    def befall(self, number: int, attempt: int, step: int) -> None:
        note_done(
            self.folder,
            Done(number, self.laid[number], 1, "", attempt, step, self.clock.wall()),
        )


def test_a_fault_is_timed_from_the_first_new_step(tmp_path: Path) -> None:
    run = Played(tmp_path, 10.0, 10.0)
    run.make(1, *range(1, 11))
    assert run.laid == []
    run.make(1, 11)
    assert run.laid == ["kill@rank1:step12"]
    run.befall(0, 1, 12)
    # Back to step 5: thirty seconds of work that was done before count for nothing.
    run.clock.advance(30.0)
    run.make(2, *range(5, 12), *range(12, 22))
    assert run.laid == ["kill@rank1:step12"]
    run.make(2, 22)
    assert run.laid == ["kill@rank1:step12", "kill@rank1:step23"]


def test_nothing_is_laid_before_the_last_fault_has_come_about(tmp_path: Path) -> None:
    run = Played(tmp_path, 5.0, 5.0)
    run.make(1, *range(1, 100))
    assert run.laid == ["kill@rank1:step7"]


def test_nothing_is_laid_once_its_time_is_over(tmp_path: Path) -> None:
    run = Played(tmp_path, 20.0, lasting_s=15.0)
    run.make(1, *range(1, 60))
    assert run.laid == []
    assert run.soak.over


@pytest.mark.parametrize("pause", [0.0, 1.0])
def test_some_progress_is_made_between_faults(tmp_path: Path, pause: float) -> None:
    run = Played(tmp_path, pause)
    run.make(1, 1, 2, 3, 4)
    assert run.laid == []
    run.make(1, 5)
    assert run.laid == ["kill@rank1:step6"]


def test_the_end_of_a_run_is_left_alone_as_a_fault_there_might_not_come_any_more(
    tmp_path: Path,
) -> None:
    run = Played(tmp_path, 10.0, steps=20)
    run.make(1, *range(1, 20))
    assert run.laid == ["kill@rank1:step12"]
    late = Played(tmp_path / "late", 12.0, steps=20)
    late.make(1, *range(1, 20))
    assert late.laid == []
