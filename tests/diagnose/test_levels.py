"""The course of the loss: bounded, and still right about any past stretch."""

import math

from longhaul.diagnose.robust import Levels


def test_levels_of_a_long_run_are_those_that_were():
    levels = Levels()
    for step in range(1, 50_001):
        levels.push(step, float(step))
    assert abs(levels.between(20_000, 21_000) - 20_500) < 400
    assert abs(levels.before(50_001) - 47_500) < 400
    assert levels.begin == 1


def test_nothing_is_known_of_what_was_not_seen():
    levels = Levels()
    assert math.isnan(levels.between(0, 100))
    for step in range(500, 600):
        levels.push(step, 1.0)
    assert math.isnan(levels.between(0, 499))
    assert levels.noise == 0
