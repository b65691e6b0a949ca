"""Robust statistics against plain ones, and what a baseline lets in."""

import math
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.diagnose.robust import Baseline, Window, trend

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
