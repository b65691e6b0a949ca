"""Incidents of the numbers go through the policy itself."""

from longhaul.core.records import Safe
from longhaul.plan.simulate.numbers import Numbers
from longhaul.plan.simulate.presets import opt_175b
from longhaul.recover.learning_rate import PATH

RECIPE = opt_175b().recipe
STATES = tuple(Safe(step, step * 992, "disk") for step in range(0, 5001, 250))


class Hand:
    def wall(self) -> float:
        return 1_700_000_000.0

    def monotonic(self) -> float:
        return 0.0


def numbers() -> Numbers:
    return Numbers(RECIPE, 992, 20.0, Hand())


def test_a_divergence_goes_back_before_its_first_sign_and_lowers_the_rate():
    own = numbers()
    cure = own.incident("divergence", 5010, 5020, STATES)
    assert cure.plan.rollback.step < 5010
    assert PATH in cure.plan.settings
    assert cure.replayed_steps == RECIPE.recover.diagnose_steps
    assert own.ledger.recoveries[0].to_step == cure.plan.rollback.step


def test_a_spike_passes_over_data_and_keeps_the_rate():
    cure = numbers().incident("loss-spike", 5010, 5020, STATES)
    begin, end = cure.plan.skip
    assert begin <= 5009 * 992 < end
    assert PATH not in cure.plan.settings


def test_the_budget_of_recoveries_ends_with_a_person():
    own = numbers()
    stops = []
    for number in range(RECIPE.recover.max_recoveries + 3):
        cure = own.incident("divergence", 5010 + number, 5020 + number, STATES)
        stops.append(cure.plan.stop)
        own.gone_back(5000)
    assert not stops[0]
    assert stops[-1]


def test_a_lowered_rate_rises_again_after_a_healthy_while():
    own = numbers()
    own.incident("divergence", 5010, 5020, STATES)
    own.gone_back(4750)
    assert not own.is_look_due(4760)
    for step in range(5500, 20_000, 500):
        if own.is_look_due(step):
            own.look(step, STATES)
    assert any("raise-lr" in recovery.actions for recovery in own.ledger.recoveries)
