"""The learning rate that works, from replays at lower and lower ones."""

import math

import pytest

from longhaul.diagnose.signs import Figures, Symptom, working_rate

DIVERGED = Symptom("divergence", step=20, first_step=11, healthy=3.0, reached=7.0)


def ends(loss: float, level: float = 3.0) -> tuple[Figures, ...]:
    """Ten steps at a level, and ten that lead from it to a loss."""
    lead = [Figures(step, level, 0.5) for step in range(1, 11)]
    slope = [Figures(10 + n, level + (loss - level) * n / 10, 0.5) for n in range(1, 11)]
    return (*lead, *slope)


@pytest.mark.parametrize(
    ("losses", "works"),
    [
        ((4.2, 3.1, 3.1), 0.125),  # half of it is not half as bad, and harms at leisure
        ((3.2, 3.2, 3.2), 0.5),  # no lower than needed
        ((3.2, 2.9, 2.6), 0.03125),  # what is calm may still learn nothing
        ((3.05, 2.98, 2.97), 0.5),  # a lower rate averages out noise, which is no sign
        ((6.0, 5.0, 4.5), None),
        ((math.nan, math.inf, 3.0), 0.03125),
    ],
)
def test_the_highest_rate_that_leaves_nothing_of_it_and_learns(losses, works) -> None:
    tried = tuple((0.5 * 0.25**n, ends(loss)) for n, loss in enumerate(losses))
    assert working_rate(DIVERGED, tried) == works


def test_of_what_was_not_finite_being_finite_is_not_enough() -> None:
    symptom = Symptom("non-finite", step=20, first_step=11)
    assert working_rate(symptom, ((0.5, ends(900.0)), (0.125, ends(3.0)))) == 0.125
