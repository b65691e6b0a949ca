from collections import Counter

from longhaul.supervise.faults.moments import PHASES, random_moments


def test_every_phase_is_struck_equally_often_and_a_seed_decides_when() -> None:
    moments = random_moments(20, 300, 3.0, seed=1)
    assert Counter(moment.phase for moment in moments) == dict.fromkeys(PHASES, 5)
    assert moments == random_moments(20, 300, 3.0, seed=1)
    assert moments != random_moments(20, 300, 3.0, seed=2)


def test_later_strikes_come_later_and_all_before_the_end() -> None:
    steps = [moment.from_step for moment in random_moments(50, 300, 3.0, seed=3)]
    assert steps == sorted(steps)
    assert 0 <= steps[0] <= steps[-1] < 300
