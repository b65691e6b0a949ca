"""Growth that goes on by a share of itself, and growth that does not."""

import math

import pytest

from longhaul.config.diagnose import GrowthLimits
from longhaul.diagnose.steady import steady_slope

TIMES = range(0, 100, 10)


def slope(course):
    return steady_slope(TIMES, [course(time) for time in TIMES], GrowthLimits())


def test_growth_by_a_share_of_itself_is_as_fast_as_it_is():
    assert slope(lambda time: 20 * 1.01**time) == pytest.approx(math.log(1.01))


@pytest.mark.parametrize("later", [0.0, 0.1, 0.2])
def test_what_flattens_is_healthy_though_it_has_grown_much(later):
    """It doubles, and then goes on at less than half that pace; no reading lies below another."""
    assert (
        slope(lambda time: 20 * 2 ** (min(time, 45) / 45 + later * max(0, time - 45) / 45)) is None
    )


def test_a_pace_that_is_kept_about_is_steady():
    course = slope(lambda time: 20 * 2 ** (min(time, 45) / 45 + 0.8 * max(0, time - 45) / 45))
    assert course == pytest.approx(0.8 * math.log(2) / 45, rel=0.05)


@pytest.mark.parametrize("broken", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_logarithm_has_no_pace(broken):
    assert slope(lambda time: broken if time == 50 else 20 * 1.02**time) is None
