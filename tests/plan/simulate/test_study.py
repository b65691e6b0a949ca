"""What a study varies, and that it compares like with like."""

from dataclasses import replace

import pytest

from longhaul.plan.simulate.engine import simulate
from longhaul.plan.simulate.presets import preset
from longhaul.plan.simulate.study import (
    CHANGES,
    at_size,
    away,
    faster_detection,
    gain,
    sized,
    span,
    swings,
)

SHORT = replace(preset("opt-175b"), days=5.0)


def test_every_assumed_input_with_a_span_is_varied_the_largest_effect_first():
    kept = {"person_s", "save_stall_s"}
    few = replace(
        SHORT.inputs,
        **{n: replace(i, low=None, high=None) for n, i in SHORT.inputs.listed() if n not in kept},
    )
    found = swings(replace(SHORT, inputs=few), [0, 1])
    assert {swing.name for swing in found} == kept
    assert found[0].width >= found[1].width
    person = next(swing for swing in found if swing.name == "person_s")
    assert person.low > person.high, "slower people cost time"


def test_a_span_over_all_assumed_inputs_holds_its_middle():
    over = span(SHORT, 8)
    assert over.low <= over.middle <= over.high
    assert 0 <= over.within <= 1
    assert over == span(SHORT, 8)


@pytest.mark.parametrize("gpus", [8, 1024, 131_072])
def test_a_size_has_a_layout_for_all_its_gpus_and_spares_for_what_is_in_repair(gpus):
    scenario = at_size(gpus)
    assert scenario.wanted.size == gpus
    assert scenario.nodes * scenario.gpus_per_node == gpus
    assert scenario.spares == max(1, round(away(scenario)))
    assert scenario.recipe.supervise.restarts_per_day > scenario.failures_per_day
    assert scenario.sequences == 16 * scenario.nodes


def test_detection_is_twice_as_fast_for_all_that_is_detected():
    before = at_size(1024)
    after = faster_detection(before)
    assert after.inputs.crash_seen_s.value == before.inputs.crash_seen_s.value / 2
    assert after.inputs.hang_seen_s.value > 0
    assert after.recipe.monitor.hash_every == before.recipe.monitor.hash_every // 2


def test_changes_are_compared_over_the_same_failures():
    size = sized(1024, [0, 1], failures=6.0)
    assert set(size.worth) == set(CHANGES)
    assert size.worth["restarts twice as fast"].value > 0
    again = simulate(size.result.scenario, [0, 1])
    assert gain(size.result, again).value == 0
