"""The fits, on losses whose law is known."""

import math
import random

import pytest

from longhaul.plan.ladder.fit import (
    Interval,
    lowest_point,
    mean95,
    power_law,
    predict_loss,
    slope95,
    student95,
    trend_in_words,
)

SIZES = (50_000, 200_000, 450_000)
NEXT = 800_000


def test_a_parabola_is_lowest_where_it_was_made() -> None:
    for lowest in (-0.4, 0.0, 0.3):
        values = [3.0 + 0.1 * (x - lowest) ** 2 for x in (-1, 0, 1)]
        assert lowest_point(*values) == pytest.approx(lowest)
    assert lowest_point(2.0, 2.0, 2.0) == 0.0


def test_student_agrees_with_tables() -> None:
    for degrees, expected in {1: 12.706, 4: 2.776, 10: 2.228, 15: 2.131, 60: 2.000}.items():
        assert student95(degrees) == pytest.approx(expected, abs=0.01)


def test_a_power_law_is_followed_beyond_its_points() -> None:
    assert power_law((1, 4, 9), (3.0, 1.5, 1.0), 16) == pytest.approx(0.75)


def test_intervals_of_a_mean_and_a_slope_agree_with_a_reference() -> None:
    # Worked out by hand: t 4.303 with two degrees of freedom in both, standard errors 0.882, 0.265.
    mean = mean95([1.0, 2.0, 4.0])
    assert (mean.value, mean.low, mean.high) == pytest.approx((2.333, -1.461, 6.128), abs=0.01)
    slope = slope95([0, 1, 2, 3], [1.0, 2.0, 2.0, 4.0])
    assert (slope.value, slope.low, slope.high) == pytest.approx((0.9, -0.238, 2.038), abs=0.01)


def test_one_value_says_nothing_of_its_own_uncertainty() -> None:
    assert mean95([1.0]).high == math.inf
    assert slope95([0, 1], [1.0, 2.0]).low == -math.inf


@pytest.mark.parametrize(
    ("slope", "mean", "word"),
    [
        ((0.1, 0.05, 0.2), (0.3, 0.1, 0.5), "grows"),
        ((-0.1, -0.2, -0.05), (0.3, 0.1, 0.5), "fades"),
        ((0.0, -0.1, 0.1), (0.3, 0.1, 0.5), "holds"),
        ((0.0, -0.1, 0.1), (-0.3, -0.5, -0.1), "hurts"),
        ((0.0, -0.1, 0.1), (0.0, -0.2, 0.2), "not shown"),
        ((math.nan, math.nan, math.nan), (math.nan, math.nan, math.nan), "diverges without it"),
    ],
)
def test_a_trend_has_one_word(
    slope: tuple[float, float, float], mean: tuple[float, float, float], word: str
) -> None:
    assert trend_in_words(Interval(*slope), Interval(*mean)) == word


def invented(chance: random.Random, noise: float, runs: int) -> tuple[list[list[float]], float]:
    """Losses of runs at the three sizes, and the mean of as many at the next, by one law."""
    floor, exponent = chance.uniform(0.0, 1.5), chance.uniform(0.05, 0.5)
    factor = 0.6 * SIZES[0] ** exponent

    def several(size: float) -> list[float]:
        law = floor + factor * size**-exponent
        return [law + chance.gauss(0.0, noise) for _ in range(runs)]

    return [several(size) for size in SIZES], sum(several(NEXT)) / runs


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "runs"), [(0.002, 2), (0.01, 2)])
def test_the_interval_holds_what_comes_about_as_often_as_it_says(noise: float, runs: int) -> None:
    chance, held, made = random.Random(7), 0, 100
    for _ in range(made):
        losses, measured = invented(chance, noise, runs)
        held += predict_loss(SIZES, losses, NEXT, runs).holds(measured)
    assert held >= 0.88 * made  # 94 % less what chance makes of a hundred


def test_an_interval_is_no_wider_than_it_must_be() -> None:
    losses = [[2.0, 2.004], [1.9, 1.904], [1.86, 1.864]]
    found = predict_loss(SIZES, losses, NEXT, 2)
    assert 1.80 < found.low < found.value < found.high < 1.86


def test_what_no_power_law_fits_widens_the_interval() -> None:
    smooth = predict_loss(SIZES, [[2.0, 2.002], [1.9, 1.902], [1.86, 1.862]], NEXT, 2)
    bent = predict_loss(SIZES, [[2.0, 2.002], [1.99, 1.992], [1.8, 1.802]], NEXT, 2)
    assert bent.high - bent.low > 3 * (smooth.high - smooth.low)


def test_the_same_losses_give_the_same_interval_and_equal_runs_give_one() -> None:
    losses = [[2.0, 2.0], [1.9, 1.9], [1.86, 1.86]]
    assert predict_loss(SIZES, losses, NEXT, 2) == predict_loss(SIZES, losses, NEXT, 2)


def test_without_a_second_run_nothing_is_said() -> None:
    with pytest.raises(ValueError, match="noise"):
        predict_loss(SIZES, [[2.0], [1.9], [1.86]], NEXT, 1)
