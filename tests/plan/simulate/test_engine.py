"""Simulated runs against sums that can be made on paper, and against what failures must do."""

import math
from dataclasses import replace

import pytest

from longhaul.config.load import with_overrides
from longhaul.parallel.layout import Layout
from longhaul.plan.failure_rates import DAY_S, FailureRate
from longhaul.plan.simulate.engine import simulate
from longhaul.plan.simulate.inputs import Input, Inputs, Outage, Scenario
from longhaul.plan.simulate.outcome import PARTS
from longhaul.plan.simulate.presets import opt_175b

RECIPE = opt_175b().recipe
GPUS = 64


def rate(per_day: float, signature="crash", shows="crash", lasting=False) -> FailureRate:
    """Failures of the whole cluster in a day."""
    return FailureRate(
        cause=signature, count=per_day, gpu_days=GPUS, shows=shows, signature=signature,
        lasting=lasting, source="a test",
    )  # fmt: skip


def inputs(**given: float) -> Inputs:
    """Nothing costs anything but what is given."""
    values = {name: Input(given.get(name, 0.0), "s", "a test") for name in Inputs.__slots__}
    values["failure_scale"] = Input(1.0, "x", "a test")
    values["straggler_slowdown"] = Input(given.get("straggler_slowdown", 1.0), "x", "a test")
    values["probe_finds"] = Input(given.get("probe_finds", 1.0), "", "a test")
    values["save_interval_s"] = Input(given.get("save_interval_s", 3600.0), "s", "a test")
    return Inputs(**values)


def scenario(*rates: FailureRate, days=40.0, **more) -> Scenario:
    given = {"inputs": inputs(), "spares": 4, "elastic": True, "knows_machines": True} | more
    return Scenario(
        name="a test", gpus=GPUS, days=days, step_s=10.0, wanted=Layout(shard=8, tensor=8),
        recipe=given.pop("recipe", RECIPE), rates=rates, **given,
    )  # fmt: skip


def only(result):
    (outcome,) = result.outcomes
    return outcome


def test_without_failures_every_second_is_training():
    outcome = only(simulate(scenario(days=3.0), [0]))
    assert outcome.goodput == pytest.approx(1.0)
    assert outcome.wall_s == pytest.approx(3 * DAY_S)
    assert outcome.restarts == 0


def test_a_run_ends_with_its_last_step():
    recipe = with_overrides(RECIPE, {"train.steps": 1000, "optim.schedule.warmup_steps": 10})
    outcome = only(simulate(scenario(days=30.0, recipe=recipe), [0]))
    assert outcome.wall_s == pytest.approx(10_000.0)


def test_seconds_of_all_parts_add_up_to_the_days():
    result = simulate(replace(opt_175b(), days=20.0), [1, 2])
    for outcome in result.outcomes:
        assert set(outcome.seconds) == set(PARTS)
        assert min(outcome.seconds.values()) >= 0
        assert outcome.wall_s == pytest.approx(20 * DAY_S)
    assert math.isclose(sum(result.shares().values()), 1.0)


def test_each_crash_costs_half_an_interval_and_what_noticing_and_starting_take():
    own = inputs(crash_seen_s=300.0, diagnosis_s=100.0, restart_s=500.0, load_s=200.0)
    result = simulate(scenario(rate(2.0), inputs=own, days=15.0), range(10))
    failures = result.mean(lambda o: sum(o.failures.values()))
    # Down for 1,100 s each, in which nothing fails: two in a day of what is left.
    expected = 15 * 2 / (1 + 2 * (300 + 100 + 700) / DAY_S)
    assert failures == pytest.approx(expected, rel=0.15)
    lost = result.mean(lambda o: o.seconds["lost work"]) / failures
    assert lost == pytest.approx(1800, rel=0.2)
    each = {"detection": 300, "diagnosis": 100, "restart": 700}
    for part, seconds in each.items():
        assert result.mean(lambda o, p=part: o.seconds[p]) / failures == pytest.approx(
            seconds, rel=0.05
        )


def test_a_hang_is_seen_after_the_watchdogs_deadline():
    own = replace(inputs(), hang_seen_s=None)
    outcome = only(simulate(scenario(rate(3.0, "hang", "hang"), inputs=own), [3]))
    each = outcome.seconds["detection"] / sum(outcome.failures.values())
    assert each == pytest.approx(10 * 10.0)


def test_wrong_numbers_are_trained_on_until_ranks_compare():
    fault = rate(1.0, "silent-corruption", "silent", lasting=True)
    found = replace(inputs(replacement_s=3600.0, save_interval_s=600.0), silent_seen_s=None)
    seen = simulate(scenario(fault, inputs=found), range(4))
    later = replace(found, silent_seen_s=Input(6 * 3600.0, "s", "a test"))
    late = simulate(scenario(fault, inputs=later), range(4))
    assert seen.shares()["lost work"] < 0.05
    assert late.shares()["lost work"] > 4 * seen.shares()["lost work"]


def test_a_straggler_slows_all_until_a_spare_takes_its_place():
    fault = rate(0.5, "gpu-error", "straggler", lasting=True)
    recipe = with_overrides(RECIPE, {"supervise.replace_stragglers": True})
    own = replace(inputs(straggler_slowdown=2.0, replacement_s=3600.0), straggler_seen_s=None)
    watched = simulate(scenario(fault, inputs=own, recipe=recipe), range(4))
    blind = replace(own, straggler_seen_s=Input(2 * DAY_S, "s", "a test"))
    unwatched = simulate(scenario(fault, inputs=blind, recipe=recipe), range(4))
    assert 0 < watched.shares()["slow"] < 0.02
    assert unwatched.shares()["slow"] > 0.2


def test_without_spares_an_elastic_run_goes_on_with_fewer_nodes_and_another_waits():
    fault = rate(0.5, "gpu-lost", lasting=True)
    own = inputs(replacement_s=6 * 3600.0)
    elastic = simulate(scenario(fault, inputs=own, spares=0), range(4))
    rigid = simulate(scenario(fault, inputs=own, spares=0, elastic=False), range(4))
    assert elastic.shares()["nodes"] == 0
    assert elastic.mean(lambda o: o.shrunk_s) > 0
    assert rigid.shares()["nodes"] > 0.05
    assert elastic.effective.value > rigid.effective.value
    spared = simulate(scenario(fault, inputs=own, spares=4, elastic=False), range(4))
    assert spared.shares()["nodes"] < 0.005


def test_a_bad_machine_that_comes_back_is_recognised_or_fails_again():
    fault = rate(1.0, "gpu-lost", lasting=True)
    own = inputs(replacement_s=3600.0, returns_broken=0.5, probe_finds=0.2, restart_s=600.0)
    known = simulate(scenario(fault, inputs=own), range(4))
    fooled = simulate(scenario(fault, inputs=own, knows_machines=False), range(4))
    assert known.mean(lambda o: o.refused) > 5
    assert fooled.mean(lambda o: o.refused) == 0
    more = fooled.mean(lambda o: sum(o.failures.values()))
    assert more > 1.2 * known.mean(lambda o: sum(o.failures.values()))


def test_people_are_waited_for_where_restarts_need_them():
    own = inputs(manual_share=1.0, person_s=7200.0)
    outcome = only(simulate(scenario(rate(2.0), inputs=own), [5]))
    assert outcome.people == sum(outcome.failures.values())
    assert outcome.seconds["people"] / outcome.people == pytest.approx(7200, rel=0.4)


def test_incidents_of_the_numbers_are_gone_back_over():
    own = inputs(numeric_per_day=0.3, numeric_seen_s=300.0, snapshot_steps=25.0)
    outcome = only(simulate(scenario(inputs=own), [0]))
    assert outcome.numeric > 2
    assert 0 < outcome.rollbacks <= outcome.numeric
    assert outcome.seconds["lost work"] > 0


def test_an_outage_and_maintenance_are_booked_as_what_they_are():
    own = inputs(planned_per_day=1.0, planned_s=600.0)
    away = (Outage(5.0, 1.0, "a test"),)
    outcome = only(simulate(scenario(inputs=own, days=10.0, outages=away), [0]))
    assert outcome.seconds["outage"] == pytest.approx(DAY_S)
    assert outcome.seconds["planned"] % 600 == pytest.approx(0, abs=1e-6)
    assert outcome.seconds["planned"] > 0


def test_the_same_seed_is_the_same_run():
    short = replace(opt_175b(), days=15.0)
    first, again = (simulate(short, [7]).outcomes for _ in range(2))
    assert first == again
    assert simulate(short, [8]).outcomes != first
