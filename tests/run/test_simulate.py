"""What `longhaul simulate` is asked becomes scenarios, or one line of what is wrong."""

import sys

import pytest

from longhaul.core.errors import RecipeError, UsageError
from longhaul.run.simulate import (
    SimulateRequest,
    require_simpy,
    scenarios_of,
    simulated,
    words,
)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (SimulateRequest(), "either a RECIPE or --preset"),
        (SimulateRequest(recipe="drill", preset="opt-175b"), "either a RECIPE or --preset"),
        (SimulateRequest(preset="gpt-5"), "--preset gpt-5: unknown"),
        (SimulateRequest(preset="opt-175b", rates="none"), "--rates none: unknown"),
        (SimulateRequest(preset="opt-175b", gpus=1001), "not a multiple of 8"),
        (SimulateRequest(preset="opt-175b", gpus=16_384), "2048 data ranks for 992 sequences"),
        (SimulateRequest(preset="opt-175b", step_s=3.0), "go with a RECIPE"),
        (SimulateRequest(recipe="llama-8b"), "--gpus is missing"),
        (SimulateRequest(recipe="llama-8b", gpus=100_000), "data ranks for"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(asked, said):
    with pytest.raises(UsageError) as raised:
        scenarios_of(asked)
    assert said in raised.value.message
    assert raised.value.remedy


def test_an_unknown_recipe_is_a_recipe_error():
    with pytest.raises((RecipeError, UsageError)):
        scenarios_of(SimulateRequest(recipe="no-such-recipe", gpus=8))


def test_a_preset_is_simulated_as_it_was_and_under_longhaul():
    was, under = scenarios_of(SimulateRequest(preset="opt-175b", spares=3, days=7.0))
    assert (was.spares, under.spares, was.days, under.days) == (3, 3, 7.0, 7.0)
    assert was.published is not None
    assert under.published is None
    assert under.name == "OPT-175B under longhaul"


def test_a_preset_of_another_size_or_with_other_rates_is_not_what_was_published():
    for asked in (SimulateRequest(preset="opt-175b", gpus=496),
                  SimulateRequest(preset="opt-175b", rates="bloom-176b")):  # fmt: skip
        was, _ = scenarios_of(asked)
        assert was.published is None
    half, _ = scenarios_of(SimulateRequest(preset="opt-175b", gpus=496))
    full, _ = scenarios_of(SimulateRequest(preset="opt-175b"))
    assert half.step_s == pytest.approx(2 * full.step_s)
    assert half.wanted.size == 496


def test_a_recipe_trains_to_its_last_step_on_gpus_that_fail_as_others_did():
    asked = SimulateRequest(recipe="gpt2-124m", gpus=64, step_s=1.0)
    (scenario,) = scenarios_of(asked)
    (result,) = simulated([scenario], 2, lambda line: None)
    steps = scenario.recipe.total_steps()
    assert result.mean(lambda o: o.seconds["training"]) == pytest.approx(steps, rel=1e-6)
    text = "\n".join(words(result))
    assert "gpt2-124m under longhaul" in text
    assert "not in training" in text


def test_without_simpy_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "simpy", None)
    with pytest.raises(UsageError) as raised:
        require_simpy()
    assert "longhaul[simulate]" in raised.value.remedy
