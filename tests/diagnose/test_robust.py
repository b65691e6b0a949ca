"""Robust statistics against plain ones, and what a baseline lets in."""

import math
import random
from statistics import median, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.diagnose.robust import Baseline, Noise, Window, trend

numbers = st.floats(-1e6, 1e6)


@settings(max_examples=50)
@given(st.lists(numbers, min_size=1, max_size=40), st.integers(1, 12))
def test_a_window_knows_the_median_and_spread_of_its_last_values(values, size):
    window = Window(size)
    for value in values:
        window.push(value)
    last = values[-size:]
    middle = median(last)
    assert window.median == middle
    assert window.largest == max(last)
    assert math.isclose(window.deviation, 1.4826 * median(abs(v - middle) for v in last))


def baseline(values):
    made = Baseline(128, new_level_after=20)
    for value in values:
        made.learn(value, False)
    return made


def test_a_constant_history_flags_only_what_exceeds_the_floor():
    made = baseline([3.0] * 60)
    assert not made.is_unheard_of(3.05, deviations=7, floor=0.01)
    assert made.is_unheard_of(3.08, deviations=7, floor=0.01)


def test_two_samples_judge_nothing():
    assert not baseline([3.0, 3.1]).is_unheard_of(1e9, deviations=7, floor=0.01)


def test_flagged_values_stay_out_until_they_are_a_new_level():
    made = baseline([3.0 + 0.01 * (i % 5) for i in range(60)])
    for _ in range(19):
        assert made.is_unheard_of(9.0, 7, 0.01)
        made.learn(9.0, True)
    made.learn(9.0, True)
    assert made.level == 9.0
    assert not made.is_unheard_of(9.0, 7, 0.01)


def test_a_ramp_is_followed():
    made = baseline(range(60))
    assert not made.is_unheard_of(61.0, 7, 0.01)


def test_a_trend_is_not_moved_by_one_wild_value():
    times = [float(i) for i in range(11)]
    values = [2 * time for time in times]
    values[4] = 1e9
    assert trend(times, values).slope == 2
    assert trend(times, values).concordance > 0.6
    assert trend(times, values[::-1]).concordance < 0


def noise(values, size=96):
    made = Noise(size)
    for value in values:
        made.push(value)
    return made


def tied(count, correlation, seed=0):
    """An AR(1) process of standard deviation 1."""
    dice, value, made = random.Random(seed), 0.0, []
    for _ in range(count):
        value = correlation * value + math.sqrt(1 - correlation**2) * dice.gauss(0, 1)
        made.append(value)
    return made


def test_the_fall_of_a_young_run_is_no_noise():
    curve = [2 + 4 * 0.97**step + 0.1 * value for step, value in enumerate(tied(140, 0.0))]
    assert noise(curve).deviation == pytest.approx(0.1, rel=0.25)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("count", [6, 16])
def test_a_median_gains_less_from_values_that_hang_together(correlation, count):
    values = tied(20_000, correlation)
    medians = [median(values[i : i + count]) for i in range(0, len(values), count)]
    told = noise(values, size=20_000).of_median(count)
    # Never too small by much, as that makes false alarms; too large by less than a half.
    assert 0.9 * pstdev(medians) < told < 1.6 * pstdev(medians)


def test_few_values_are_reckoned_with_as_if_they_hung_together():
    values = tied(60, 0.0)
    assert noise(values[:30]).of_median(16) > 2 * noise(values).of_median(16)


def test_noise_of_nothing_is_infinite_and_that_of_constants_none():
    assert noise([]).deviation == noise([3.0] * 16).of_median(6) == math.inf
    assert noise([3.0] * 60).deviation == noise([3.0] * 60).of_median(6) == 0


def test_what_was_noisy_counts_as_noisy_until_enough_of_the_new_is_known():
    made = noise(tied(200, 0.0))
    before = made.deviation
    made.renew()
    for value in tied(40, 0.0):
        made.push(value / 100)
    assert made.deviation == before
    for value in tied(40, 0.0):
        made.push(value / 100)
    assert made.deviation < before / 20
