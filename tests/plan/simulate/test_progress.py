"""Every second of a simulated run is booked once."""

import pytest

from longhaul.plan.failure_rates import DAY_S
from longhaul.plan.simulate.progress import Progress


class Hand:
    """A clock that a test moves."""

    now = 0.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def test_seconds_add_up_and_lost_work_is_no_training():
    clock = Hand()
    progress = Progress(clock, step_s=10.0)
    clock.now = 50.0
    progress.train(pace_s=10.0)
    clock.now = 150.0
    assert progress.step == 10
    progress.train(pace_s=20.0)  # a straggler
    clock.now = 250.0
    assert progress.step == 15
    progress.stop()
    clock.now = 260.0
    progress.book("restart")
    progress.go_back(12)
    clock.now = 300.0
    spent = progress.close()
    assert sum(spent.values()) == pytest.approx(300)
    assert spent["training"] == pytest.approx(120)
    assert spent["lost work"] == pytest.approx(30)
    assert spent["slow"] == pytest.approx(50)
    assert (spent["detection"], spent["restart"]) == (10, 50 + 40)


def test_the_course_counts_what_is_kept_at_full_speed():
    clock = Hand()
    progress = Progress(clock, step_s=DAY_S / 100)
    progress.train(pace_s=DAY_S / 50)
    clock.now = DAY_S
    progress.sample()
    assert progress.course == [(1.0, 0.5)]
