"""The simulation asks the supervisor's own code: what that decides happens here too."""

from dataclasses import replace

from longhaul.config.load import with_overrides
from longhaul.plan.failure_rates import LLAMA_3_405B
from longhaul.plan.simulate.cluster import machines_of
from longhaul.plan.simulate.decisions import Decisions, hang_deadline
from longhaul.plan.simulate.presets import opt_175b
from longhaul.supervise.nodes.answer import SILENT_CORRUPTION, MachineVerdict
from longhaul.supervise.restart import ATTEMPTS_AT_ONE_STEP

SCENARIO = opt_175b()
RATES = {rate.cause: rate for rate in LLAMA_3_405B.rates}


class Hand:
    now = 1_700_000_000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def begun(scenario=SCENARIO):
    clock = Hand()
    decisions = Decisions(scenario, machines_of(scenario), clock)
    world = decisions.choose().world
    decisions.begin(world)
    return decisions, world, clock


def failed(decisions, world, cause, number=0, reached=500, usable=(0, 400), verdict=None):
    said = decisions.cause_of(RATES[cause], world, world.machines[number])
    return decisions.failed(said, world, list(usable), 400, reached, verdict)


def test_a_node_with_broken_memory_is_cordoned_and_a_spare_takes_its_place_after_a_probe():
    decisions, world, _ = begun()
    assert len(world.machines) == 124
    judged = failed(decisions, world, "GPU HBM3 memory")
    assert judged.plan.restart
    assert list(judged.answer.cordoned) == ["node-00000"]
    choice = decisions.choose()
    assert "node-00000" not in choice.world.names
    assert [machine.name for machine in choice.probe] == ["node-00124"]
    decisions.probed(choice.probe[0], passed=True)
    assert decisions.choose().probe == ()


def test_a_bad_machine_under_another_name_is_refused():
    decisions, world, _ = begun()
    bad = world.machines[0]
    failed(decisions, world, "faulty GPU")
    decisions.replaced(bad, replace(bad, name="node-99999"))
    assert "was cordoned" in decisions.choose().absent["node-99999"]


def test_a_node_that_fails_twice_in_a_day_is_left_out():
    decisions, world, clock = begun()
    first = failed(decisions, world, "network switch or cable")
    clock.now += 3600
    assert first.answer.left_out == ()
    second = failed(decisions, world, "network switch or cable", reached=700)
    assert second.answer.left_out == ("node-00000",)


def test_the_same_failure_at_one_step_goes_further_back_and_then_waits_for_a_person():
    decisions, world, clock = begun()
    plans = []
    for number in range(ATTEMPTS_AT_ONE_STEP + 1):
        clock.now += 600
        plans.append(failed(decisions, world, "software bug", number).plan)
    assert [plan.restart for plan in plans] == [True, True, True, False]
    assert plans[2].poison == 400


def test_more_failures_in_a_day_than_allowed_wait_for_a_person():
    recipe = with_overrides(SCENARIO.recipe, {"supervise.restarts_per_day": 2})
    decisions, world, clock = begun(replace(SCENARIO, recipe=recipe))
    plans = []
    for number in range(3):
        clock.now += 600
        plans.append(failed(decisions, world, "software bug", number, reached=500 + 50 * number))
    assert [judged.plan.restart for judged in plans] == [True, True, False]


def test_checkpoints_after_the_last_sound_comparison_are_not_used():
    decisions, world, _ = begun()
    rate = RATES["silent data corruption"]
    assert rate.signature == SILENT_CORRUPTION
    verdict = MachineVerdict("corrupt", (8, 9), "replicas differ", 300)
    judged = failed(decisions, world, rate.cause, 1, usable=(0, 200, 300, 400), verdict=verdict)
    assert judged.poisoned == {400}
    assert list(judged.answer.cordoned) == ["node-00001"]


def test_the_deadline_of_a_hang_is_the_watchdogs():
    assert hang_deadline(SCENARIO, "step") == 10 * SCENARIO.step_s
    quick = replace(SCENARIO, step_s=0.1)
    assert hang_deadline(quick, "step") == SCENARIO.recipe.supervise.deadline_s
