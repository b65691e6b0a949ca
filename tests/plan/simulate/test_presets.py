"""Published runs: their sources, their figures, and how near a simulation comes."""

import json
from pathlib import Path

import pytest

from longhaul.plan.simulate.engine import simulate
from longhaul.plan.simulate.inputs import NOT_TOLD
from longhaul.plan.simulate.measured import MEASURED
from longhaul.plan.simulate.presets import PRESETS, preset

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.mark.parametrize("one", MEASURED, ids=lambda one: one.name)
def test_measured_figures_are_those_of_the_result_files(one):
    bars = json.loads((RESULTS / one.file).read_text())["bars"]
    (bar,) = (bar for bar in bars if bar["name"] == one.name)
    assert (one.value, one.unit) == (pytest.approx(bar["value"], rel=1e-3), bar["unit"])


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("longhaul", [False, True])
def test_every_input_has_a_source_or_a_span(name, longhaul):
    for path, given in preset(name, longhaul).inputs.listed():
        assert given.source, path
        if given.assumed and given.source != NOT_TOLD:
            assert given.has_span, f"{path} is assumed and has no span"
            assert given.low <= given.value <= given.high, path


def test_ideal_durations_are_those_that_were_published():
    opt = preset("opt-175b")
    ideal_days = opt.recipe.total_steps() * opt.step_s * opt.share_of_ideal / 86_400
    assert ideal_days == pytest.approx(33)
    assert opt.published == pytest.approx(0.589, abs=1e-3)
    assert opt.failures_per_day == pytest.approx(2.0)
    llama = preset("llama-3-405b")
    assert llama.failures_per_day * 54 == pytest.approx(419)
    assert llama.wanted.size == llama.gpus


def test_opt_is_reproduced_within_five_points_and_gains_under_longhaul():
    was = simulate(preset("opt-175b"), range(8))
    assert was.within(0.05)
    under = simulate(preset("opt-175b", longhaul=True), range(3))
    assert under.effective.value > was.effective.value + 0.2
    assert under.mean(lambda outcome: outcome.people) < 1


@pytest.mark.slow
def test_llama_is_reproduced_within_five_points():
    assert simulate(preset("llama-3-405b"), range(3)).within(0.05)
