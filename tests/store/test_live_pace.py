"""A copy beside live runs: pure control, and journals that are read for it."""

from pathlib import Path

from fakes import FakeClock
from longhaul.core.records import StepRecord
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import acquire
from longhaul.store.live_pace import LiveRuns, LiveShares, yielding
from longhaul.store.transfers import LEAST_SHARE, Pace, Throttle
from small_runs import grown


def watched(*runs: str, quiet: float = 1.0) -> LiveShares:
    shares = LiveShares()
    for run in runs:
        for _ in range(10):
            shares.observe(run, quiet, transferring=False)
    return shares


def test_the_run_that_is_slowed_most_decides() -> None:
    shares = watched("a", "b")
    for _ in range(5):
        shares.observe("a", 1.0, transferring=True)
        shares.observe("b", 1.2, transferring=True)
    assert shares.share == 0.5
    shares.forget(["b"])
    assert shares.share == 1.0


def test_without_a_live_run_it_works_all_the_time() -> None:
    assert LiveShares().share == 1.0


def test_it_comes_back_slowly_when_the_run_is_as_fast_as_before() -> None:
    shares = watched("a")
    for _ in range(10):
        shares.observe("a", 1.5, transferring=True)
    assert shares.share == 0.25
    seen = []
    for _ in range(6):
        for _ in range(5):
            shares.observe("a", 1.0, transferring=True)
        seen.append(shares.share)
    assert seen == [0.375, 0.5, 0.625, 0.75, 0.875, 1.0]


def test_steps_that_stay_slow_without_the_copy_free_it_after_a_rest() -> None:
    """As where a curriculum makes steps longer: the old median must not hold it down for good."""
    shares, rested = watched("a"), 0
    for _ in range(400):
        resting = shares.share == 0
        rested += resting
        shares.observe("a", 2.0, transferring=not resting)
    assert rested == 6, "one that was begun before, and five to compare with"
    assert shares.share == 1.0


def test_a_copy_that_is_to_blame_is_held_down_for_good() -> None:
    shares, worked = watched("a"), []
    for _ in range(1000):
        at = shares.share
        worked.append(at)
        shares.observe("a", 1.0 if at == 0 else 1.3, transferring=at > 0)
    assert sum(worked[100:]) / 900 < 0.15
    assert min(at for at in worked if at) == LEAST_SHARE


def test_half_the_share_is_half_the_rate_below_a_ceiling_too() -> None:
    pace = Pace(most_bytes_per_s=1000)
    pace.share = 0.5
    assert pace.pause_s(500, 0.1) + 0.1 == 1.0
    assert pace.pause_s(500, 0.1, streams=4) + 0.1 == 4.0


def test_steps_made_before_the_copy_are_what_it_is_compared_with(tmp_path: Path) -> None:
    folder = grown(tmp_path / "runs" / "a")  # a second each, until second 1,000,030
    clock = FakeClock(1e6 + 30)
    with acquire(folder, clock).keep():
        live = LiveRuns(tmp_path / "runs", clock)
        assert live.look() == 1.0
        slow(folder, 31, 10, seconds=1.5)
        assert live.look() == 0.25
        assert live.look() == 0.25, "no step is counted twice"
    assert live.look() == 1.0, "it does not train any more"


def slow(folder, first: int, count: int, seconds: float) -> None:
    journal = Journal(folder, 1)
    for step in range(first, first + count):
        journal.append(
            StepRecord(
                attempt=1, segment="1.00", step=step, draw=step, next_draw=step + 1,
                time=1e6 + step + 1, loss=1.0, gradient_norm=1.0, learning_rate=1e-3, sequences=8,
                sequence_length=64, seconds={"training": seconds},
            )
        )  # fmt: skip
    journal.close()


def test_a_broken_run_beside_keeps_nobody(tmp_path: Path) -> None:
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "run.json").write_text("{")
    assert LiveRuns(tmp_path / "runs", FakeClock()).look() == 1.0
    assert LiveRuns(tmp_path / "none", FakeClock()).look() == 1.0


def test_a_transfer_of_the_body_is_slowed(tmp_path: Path) -> None:
    folder, clock, pace = grown(tmp_path / "runs" / "a"), FakeClock(1e6 + 20), Pace()
    slow(folder, 31, 10, seconds=1.5)
    with acquire(folder, clock).keep(), yielding(Throttle(pace), tmp_path / "runs", clock):
        assert pace.share < 1.0
    pace.share = 1.0
    with acquire(folder, clock).keep(), yielding(Throttle(pace), None, clock):
        assert pace.share == 1.0, "of no runs"
