"""What stands out at a step, and whether a replay shows it."""

import math

import pytest

from longhaul.diagnose.signs import Figures, Symptom, symptom_of, symptom_since


def series(*losses: float, gradient: float = 1.0, begin: int = 1) -> tuple[Figures, ...]:
    return tuple(Figures(step, loss, gradient) for step, loss in enumerate(losses, start=begin))


CALM = tuple(3.0 - 0.01 * step + 0.01 * (step % 3) for step in range(40))


def test_a_calm_run_shows_nothing() -> None:
    assert symptom_of(series(*CALM), 40).kind == "none"
    assert symptom_of((), 1).kind == "none"
    assert symptom_of(series(3.0), 1).kind == "none"


def test_a_step_change_upwards_is_a_spike_and_one_downwards_is_none() -> None:
    found = symptom_of(series(*CALM, 4.0), 41)
    assert (found.kind, found.first_step, found.reached) == ("loss-spike", 41, 4.0)
    assert symptom_of(series(*CALM, 1.0), 41).kind == "none"


def test_a_spike_is_still_found_when_noticed_a_little_late() -> None:
    found = symptom_of(series(*CALM, 4.0, 2.6, 2.6), 43)
    assert (found.kind, found.step) == ("loss-spike", 41)


def test_a_ramp_does_not_raise_its_own_baseline() -> None:
    ramp = [2.6 + 0.05 * step for step in range(30)]
    found = symptom_of(series(*CALM, *ramp), 70)
    assert found.kind == "divergence"
    assert 40 <= found.first_step <= 48
    assert found.healthy < 2.7


def test_a_gradient_spike_is_found_though_the_loss_is_calm() -> None:
    figures = (*series(*CALM), Figures(41, CALM[-1], 9.0))
    assert symptom_of(figures, 41).kind == "gradient-spike"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_comes_first_from_its_first_step_on(bad: float) -> None:
    found = symptom_of(series(*CALM, bad, bad), 42)
    assert (found.kind, found.first_step) == ("non-finite", 41)
    assert found.shown_by(series(2.6, bad, begin=40))
    assert not found.shown_by(series(2.6, 99.0, begin=40))


SPIKE = Symptom("loss-spike", step=41, first_step=41, healthy=2.6, reached=4.6)


def test_half_of_the_rise_shows_it() -> None:
    assert SPIKE.shown_by(series(2.6, 3.7, begin=40))
    assert not SPIKE.shown_by(series(2.6, 3.5, begin=40))


def test_a_replay_at_another_level_is_measured_from_its_own() -> None:
    # Eight times slower, the loss is far above the healthy level, and does not rise.
    assert not SPIKE.shown_by(series(*[3.8] * 16, 3.8, begin=25))
    assert SPIKE.shown_by(series(*[3.8] * 16, 4.9, begin=25))


def test_a_divergence_that_is_overcome_is_none() -> None:
    symptom = Symptom("divergence", step=60, first_step=41, healthy=2.6, reached=4.6)
    assert symptom.shown_by(series(*[4.0] * 20, begin=41))
    assert not symptom.shown_by(series(*[4.0] * 10, *[2.6] * 10, begin=41))


def test_a_divergence_whose_first_sign_is_known_is_measured_from_before_it() -> None:
    """A slow one stands out late from the steps before; a detector has seen it from its start."""
    slow = [2.62 + 0.004 * step for step in range(20)]
    recorded = series(*CALM, *slow)
    assert symptom_of(recorded, 60).first_step > 50
    found = symptom_since(recorded, 41)
    assert found is not None
    assert (found.kind, found.step, found.first_step) == ("divergence", 60, 41)
    assert (found.healthy, found.reached) == pytest.approx((2.66, 2.69), abs=0.03)
    assert found.shown_by(recorded[30:])
    assert not found.shown_by(series(*CALM[30:], *([2.6] * 20), begin=31))


def test_nothing_rises_from_where_nothing_is_known() -> None:
    assert symptom_since((), 5) is None
    assert symptom_since(series(*CALM), 1) is None, "no step before the first sign"
    assert symptom_since(series(*CALM), 30) is None, "it falls"
    assert symptom_since(series(*CALM, 9.0, 9.0, *([2.5] * 8)), 41) is None, "it has come back"
    assert symptom_since(series(*CALM), 60) is None, "beyond the last step"
    broken = symptom_since(series(*CALM, math.nan), 38)
    assert broken is not None
    assert broken.kind == "non-finite"
