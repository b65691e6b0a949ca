"""Whether the loss bears out what a warning fears."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from longhaul.core.records import Decision
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.recover.health_monitor import HealthMonitor
from longhaul.recover.probation import is_worse

HIGH = 0.07
"""An update ratio at which weights are replaced within fourteen steps."""


def course(steps, since, shift, seed=1, noise=0.1):
    draw = random.Random(seed)
    return tuple(
        (step, 2.5 - 1e-4 * step + draw.gauss(0, noise) + shift * (step > since))
        for step in range(1, steps + 1)
    )


@given(seed=st.integers(0, 1000), later=st.integers(16, 400))
def test_a_level_that_rose_is_worse_and_one_that_fell_is_not(seed, later):
    assert is_worse(course(500 + later, 500, 0.3, seed), 500) is True
    assert is_worse(course(500 + later, 500, -0.1, seed), 500) is False


def test_noise_is_seldom_taken_for_harm():
    wrong = sum(is_worse(course(548, 500, 0.0, seed), 500) is True for seed in range(400))
    assert wrong <= 0.1 * 400


def test_harm_that_began_late_does_not_drown_in_what_went_well_before():
    falls = course(900, 500, -0.2)
    late = tuple((step, loss + (0.5 if step > 860 else 0.0)) for step, loss in falls)
    assert is_worse(falls, 500) is False
    assert is_worse(late, 500) is True


def test_what_is_not_finite_is_worse_and_too_few_losses_tell_nothing():
    lost = tuple((s, math.nan if s > 505 else loss) for s, loss in course(520, 500, 0.0))
    assert is_worse(lost, 500) is True
    assert is_worse((), 500) is None
    assert is_worse(course(548, 500, 0.3)[495:], 500) is None
    assert is_worse(course(548, 500, 0.3), 500, begin=495) is None
    assert is_worse(course(500, 500, 0.3), 500) is None


# In a run: records in, plans out.


def judged(make, shift, ratio, ledger=None):
    """The first plan for growth, and its step."""
    recipe = make.recipe(optim={"lr": 1e-3, "schedule": {"warmup_steps": 50}})
    judge, ledger = HealthMonitor(recipe), ledger or LedgerState()
    states = tuple((step, step * make.blocks, "memory") for step in range(0, 1000, 20))
    for step, loss in course(700, 300, shift, noise=0.05):
        record = make.step(
            step, loss=loss + 2 * math.exp(-step / 200), warmup=step <= 50,
            states=states[: step // 20 + 1],
            totals={"update_ratio.matrix": ratio(step)} if step % 5 == 0 else {},
        )  # fmt: skip
        judge.observe(record)
        drafted = judge.draft(ledger if step >= 300 else LedgerState())
        if drafted is not None and drafted.plan.cause == "growth":
            return step, drafted.plan
    return None


def jump(step):
    return HIGH if step > 300 else 0.01


def by_a_person():
    data = {"path": "optim.lr", "value": 1e-3, "old": 1e-4}
    return fold(
        LedgerState(),
        Decision(kind="set", attempt=1, step=300, time=0.0, who="anna", reason="", data=data),
    )


def test_a_raised_rate_that_does_good_is_left_to_the_person_who_raised_it(make):
    step, plan = judged(make, -0.1, jump, by_a_person())
    assert plan.actions == ("report",)
    assert step < 400
    assert "anna set optim.lr" in plan.reason
    _, plan = judged(make, 0.2, jump, by_a_person())
    assert plan.actions == ("rollback", "undo")
    assert plan.rollback.step == 300


def test_a_gauge_that_is_only_high_is_acted_on_where_the_loss_agrees(make):
    _, plan = judged(make, 0.0, jump)
    assert plan.actions == ("report",)
    _, plan = judged(make, 0.2, jump)
    assert plan.actions == ("rollback", "lower-lr")


def test_a_gauge_that_is_high_from_the_start_has_no_losses_to_be_held_against(make):
    step, plan = judged(make, 0.0, lambda step: HIGH)
    assert plan.actions == ("rollback", "lower-lr")
    assert step < 110


def test_a_judge_after_a_restart_knows_the_losses_that_the_one_before_it_knew(make):
    recipe = make.recipe(diagnose={"memory_steps": 256})
    records = [make.step(step, loss=5.0 - 1e-3 * step) for step in range(1, 901)]
    live = HealthMonitor(recipe, records)
    again = HealthMonitor(recipe, records[-HealthMonitor.records_needed(recipe) :])
    lost = make.step(901, loss=math.nan, masked=False)
    drafts = []
    for judge in (live, again):
        judge.observe(lost)
        drafts.append(judge.draft(LedgerState()))
    assert drafts[0].situation.losses[:-1] == drafts[1].situation.losses[:-1]
    assert [step for step, _ in drafts[0].situation.losses] == list(range(646, 902))
