import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.store.transfers import Pace


def watched(quiet: float = 1.0, **settings) -> Pace:
    pace = Pace(**settings)
    for _ in range(10):
        pace.observe(quiet, transferring=False)
    return pace


def test_a_transfer_that_slows_the_step_gives_way_and_comes_back() -> None:
    pace = watched()
    shares = []
    for _ in range(4):
        for _ in range(5):
            pace.observe(1.2, transferring=True)
        shares.append(pace.share)
    assert shares == [0.5, 0.25, 0.125, 0.0625]
    for _ in range(5 * 20):
        pace.observe(1.0, transferring=True)
    assert pace.share == 1.0


def test_it_never_gives_up_altogether() -> None:
    pace = watched()
    for _ in range(1000):
        pace.observe(9.0, transferring=True)
    assert pace.share == 1 / 32
    assert pace.pause_s(1, 1.0) == 31.0


def test_a_single_slow_step_is_no_reason() -> None:
    pace = watched()
    for number in range(100):
        pace.observe(30.0 if number % 5 == 0 else 1.0, transferring=True)
    assert pace.share == 1.0


def test_without_quiet_steps_there_is_nothing_to_compare_with() -> None:
    pace = Pace()
    for _ in range(50):
        pace.observe(5.0, transferring=True)
    assert pace.share == 1.0


def test_steps_that_grow_slower_by_themselves_are_not_held_against_a_transfer() -> None:
    pace = watched(1.0)
    for _ in range(32):
        pace.observe(2.0, transferring=False)
    for _ in range(50):
        pace.observe(2.0, transferring=True)
    assert pace.share == 1.0


def test_a_ceiling_holds_whatever_the_step_does() -> None:
    pace = Pace(most_bytes_per_s=1000)
    assert pace.pause_s(500, 0.1) == pytest.approx(0.4)
    assert pace.pause_s(500, 3.0) == pytest.approx(0.0)
    assert Pace().pause_s(10**9, 0.1) == 0.0


@given(st.integers(0, 10**6))
def test_it_settles_where_the_step_is_hardly_slower(seed: int) -> None:
    """A store whose traffic costs the step 30 % at full share, with 1 % of jitter."""
    chance = random.Random(seed)
    pace, cost = watched(), 0.3
    shares = []
    for _ in range(400):
        pace.observe((1 + cost * pace.share) * chance.gauss(1, 0.01), transferring=True)
        shares.append(pace.share)
    assert sum(shares[100:]) / 300 < 0.25
    assert min(shares) >= 1 / 32


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_a_time_that_is_none_changes_nothing(value: float) -> None:
    pace = watched()
    for _ in range(2):
        pace.observe(value, transferring=True)
        pace.observe(value, transferring=False)
    for _ in range(30):
        pace.observe(1.0, transferring=True)
    assert pace.share == 1.0
