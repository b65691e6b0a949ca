"""What the policy does about findings: the rows of the incident book, and what it never does."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.recover import SOUND_KINDS, FallbackSection, RecoverSection
from longhaul.logbook.ledger import LedgerState
from longhaul.recover.learning_rate import rates
from longhaul.recover.plan import Plan, is_free
from longhaul.recover.policy import PROBATION, decide
from longhaul.recover.probation import Course

LIMITS = RecoverSection()
HARMFUL = (
    "non-finite", "loss-scale-collapse", "divergence", "loss-spike", "gradient-spike", "growth",
)  # fmt: skip
CONSTANT = {"optim": {"lr": 1e-3, "schedule": {"shape": "constant"}}}
FP16 = {"precision": {"compute": "fp16_weights"}}


def carried_out(make, steps_and_findings, recipe=None, good=None, limits=LIMITS, fallbacks=()):
    """Each finding decided on after the others were carried out; the plans and the ledger."""
    ledger, plans = None, []
    for step, finding in steps_and_findings:
        values = {} if good is None else {"good": good}
        situation = make.situation(step, ledger, recipe, **values)
        plan = decide(make.under(situation, limits, fallbacks), [finding])
        plans.append(plan)
        if plan is not None:
            base = make.situation(step, ledger, recipe).ledger
            ledger = make.after(base, plan, step)
    return plans, ledger


# The incident book, row by row.


def test_n1_a_divergence_goes_back_and_lowers_the_learning_rate(make):
    plan = decide(make.situation(150), [make.finding("divergence", 148, 120)])
    assert plan.actions == ("rollback", "lower-lr")
    assert plan.rollback.step == 100  # a margin of 20 steps before the first sign
    assert plan.settings == {"optim.lr": 5e-4}
    assert plan.old == {"optim.lr": 1e-3}
    assert plan.price["steps_lost"] == 50
    assert plan.price["steps_lost_later"] > 0
    assert "back to step 100" in plan.reason
    assert "0.001 → 0.0005" in plan.reason


def test_n2_gradient_spikes_tighten_clipping_and_then_lower_the_learning_rate(make):
    spikes = [
        (200, make.finding("gradient-spike", 200, 180, severity="warning")),
        (206, make.finding("gradient-spike", 206, 201)),
        (260, make.finding("gradient-spike", 260, 250)),
    ]
    plans, _ = carried_out(make, spikes)
    assert [plan.actions for plan in plans] == [
        ("tighten-clip",), ("lower-lr",), ("rollback", "lower-lr"),
    ]  # fmt: skip
    assert plans[0].settings == {"optim.clip": 0.5}
    assert plans[0].rollback is None
    assert plans[1].rollback is None


def test_activations_are_clamped_with_room_for_what_they_usually_reach(make):
    limits = RecoverSection(ladder={"growth": (("clamp",), ("lower-lr",))})
    grows = make.finding("growth", 200, 150, severity="warning", subject="residual_max[1]")
    situation = make.situation(200, residual_max=12.5)
    plan = decide(make.under(situation, limits), [grows])
    assert plan.actions == ("clamp",)
    assert plan.settings == {"model.residual_clamp": 25.0}
    assert "model.residual_clamp 0 → 25" in plan.reason
    # Where nothing is known of it, and once it is on, the next rung is taken.
    for known in (
        make.situation(200),
        make.situation(400, make.after(LedgerState(), plan, 200), residual_max=20.0, good=()),
    ):
        later = make.finding("growth", known.step, known.step - 20)
        assert decide(make.under(known, limits), [later]).actions == ("lower-lr",)


def test_n3_a_batch_that_is_not_finite_is_masked_and_training_goes_on(make):
    one = make.finding("non-finite", 200, severity="notice")
    two = make.finding("non-finite", 200, 190, severity="warning")
    assert decide(make.situation(200), [one]) is None
    plan = decide(make.situation(200), [two])
    assert plan.actions == ("mask",)
    assert not plan.effects
    # It is no rung of the ladder: what is done first about an alarm is still the first rung.
    ledger = make.after(LedgerState(), plan, 200)
    alarm = make.finding("non-finite", 201, 190)
    plan = decide(make.situation(201, ledger), [alarm])
    assert plan.actions == ("rollback", "skip")


def test_n4_a_sinking_loss_scale_goes_back_resets_it_and_lowers_the_rate(make):
    for severity in ("warning", "alarm"):
        finding = make.finding("loss-scale-collapse", 300, 260, severity=severity)
        plan = decide(make.situation(300, recipe=make.recipe(**FP16)), [finding])
        assert plan.actions == ("rollback", "reset-loss-scale", "lower-lr")
        assert plan.reset == ("loss-scale",)
        assert plan.rollback.step < 260


def test_n5_growth_is_acted_on_while_the_loss_is_fine_from_before_it_began(make):
    growth = make.finding("growth", 500, 400, severity="warning", subject="attention_logit_max[1]")
    plan = decide(make.situation(500), [growth])
    assert plan.rollback.step <= 400 - 20
    assert "lower-lr" in plan.actions


@pytest.mark.parametrize("kind", sorted(SOUND_KINDS))
@pytest.mark.parametrize("severity", ["warning", "alarm"])
def test_n6_n7_n8_n14_n15_sound_weights_are_reported_on_once_and_left_alone(make, kind, severity):
    finding = make.finding(kind, 300, 200, severity=severity, subject="web")
    situation = make.situation(300)
    plan = decide(situation, [finding])
    assert plan.actions == ("report",)
    assert not plan.effects
    assert not plan.stop
    ledger = make.after(situation.ledger, plan, 300)
    assert decide(make.situation(330, ledger), [finding]) is None
    other = make.finding(kind, 330, severity=severity, subject="code")
    assert decide(make.situation(330, ledger), [other]).actions == ("report",)


def test_n9_the_same_data_that_spikes_again_is_passed_over(make):
    by_rate = RecoverSection.model_validate({"ladder": {"loss_spike": (("rollback", "lower-lr"),)}})
    spike = make.finding("loss-spike", 310, 300)
    plans, _ = carried_out(make, [(310, spike), (311, spike)], limits=by_rate)
    assert plans[0].actions == ("rollback", "lower-lr")
    assert plans[0].skip is None
    assert plans[1].actions == ("rollback", "skip")
    assert plans[1].skip[0] <= spike.first_draw < plans[1].skip[1]
    assert "same data" in plans[1].reason


def test_data_that_is_passed_over_already_is_no_cure_again(make):
    spike = make.finding("loss-spike", 310, 300)
    plans, _ = carried_out(make, [(310, spike), (311, spike)])
    assert plans[0].actions == ("rollback", "skip")
    assert plans[1].actions == ("rollback", "lower-lr")


@pytest.mark.parametrize(
    ("old", "step"),
    [
        (1e-3, 200),  # long ago: the run stood that rate
        (1.0, 290),  # lowered, which makes nothing spike
    ],
)
def test_a_rate_that_held_or_was_lowered_is_not_to_blame(make, old, step):
    ledger = make.set(LedgerState(), "optim.lr", 0.1, old, step)
    spike = make.finding("loss-spike", 310, 300)
    assert decide(make.situation(310, ledger), [spike]).actions == ("rollback", "skip")


def test_n10_whatever_the_data_the_rate_goes_down_step_by_step_and_up_again_after_health(make):
    spikes = [(step, make.finding("loss-spike", step, step - 5)) for step in (300, 340, 380, 410)]
    plans, ledger = carried_out(make, spikes)
    assert plans[0].actions == ("rollback", "skip")
    rates = [plan.settings["optim.lr"] for plan in plans[1:]]
    assert rates == [5e-4, 2.5e-4, 1.25e-4]
    back = plans[-1].rollback.step
    assert decide(make.situation(back + 49, ledger)) is None
    raised, step = [], back
    while (plan := decide(make.situation(step := step + 50, ledger))) is not None:
        assert plan.actions == ("raise-lr",)
        assert plan.rollback is None
        assert plan.price["steps_lost_later"] < 0
        raised.append(plan.settings["optim.lr"])
        ledger = make.after(ledger, plan, step)
    assert raised == sorted(raised)
    assert len(raised) == 6
    assert raised[-1] == 1e-3
    assert all(b / a < 1.6 for a, b in itertools.pairwise([1.25e-4, *raised]))


def test_notices_and_what_was_rolled_back_are_never_acted_on(make):
    for kind in HARMFUL:
        assert decide(make.situation(300), [make.finding(kind, 300, severity="notice")]) is None
        assert decide(make.situation(300), [make.finding(kind, 301)]) is None
    for kind in ("loss-spike", "divergence"):
        finding = make.finding(kind, 300, severity="warning")
        assert decide(make.situation(300), [finding]) is None


def test_without_a_good_state_the_run_goes_on_at_a_lower_rate(make):
    for kind in ("loss-spike", "divergence"):
        situation = make.situation(300, good=make.safe(290))
        plan = decide(situation, [make.finding(kind, 300, 250)])
        assert plan.actions == ("lower-lr",)
        assert plan.rollback is None
        assert plan.skip is None
        assert "no good state" in plan.reason


def test_a_change_in_place_is_given_time_but_an_alarm_is_not_kept_waiting(make):
    warning = make.finding("growth", 300, 250, severity="warning", subject="a[0]")
    situation = make.situation(300, good=())
    ledger = make.after(situation.ledger, decide(situation, [warning]), 300)
    soon = make.finding("growth", 305, 250, severity="warning", subject="a[1]")
    assert decide(make.situation(305, ledger, good=()), [soon]) is None
    worse = make.finding("growth", 305, 250, subject="a[1]")
    assert decide(make.situation(305, ledger, good=()), [worse]).settings


def test_what_was_only_reported_keeps_no_other_warning_waiting(make):
    high = {"value": 0.07, "stands_since": 250.0}
    ratio = make.finding("growth", 300, severity="warning", subject="u", evidence=high)
    known = {"losses": tuple((step, 3 - step / 1000) for step in range(1, 311))}
    plan = decide(make.situation(300, **known), [ratio])
    assert plan.actions == ("report",)
    ledger = make.after(LedgerState(), plan, 300)
    trend = make.finding("growth", 305, 250, severity="warning", subject="a[1]")
    assert "lower-lr" in decide(make.situation(305, ledger, **known), [trend]).actions


def test_the_first_sign_of_all_decides_where_to_go_back_to(make):
    findings = [make.finding("divergence", 300, 280), make.finding("growth", 300, 200)]
    plan = decide(make.situation(300), findings)
    assert plan.cause == "divergence"
    assert plan.rollback.step <= 180
    assert plan.first_step == 200


def test_a_cause_that_comes_back_is_looked_for_further_back(make):
    divergence = make.finding("divergence", 310, 300)
    plans, _ = carried_out(make, [(310, divergence), (310, divergence)])
    assert plans[0].rollback.step == 280
    assert plans[1].rollback.step == 260


def test_after_the_cooldown_a_ladder_begins_anew(make):
    first, later = make.finding("loss-spike", 300), make.finding("loss-spike", 600)
    plans, _ = carried_out(make, [(300, first), (600, later)])
    assert [plan.actions for plan in plans] == [("rollback", "skip")] * 2


def test_a_third_divergence_resets_the_optimizer_and_warms_up_again(make):
    found = [(step, make.finding("divergence", step)) for step in (300, 330, 360)]
    plan = carried_out(make, found)[0][-1]
    assert "reset-optimizer" in plan.actions
    assert plan.reset == ("optimizer",)
    assert plan.rewarm_steps == 20


# Budgets, plans B, and the end.


def test_when_the_budget_is_spent_plans_b_come_in_order_and_then_a_person_must_look(make):
    limits = RecoverSection(max_recoveries=2)
    fallbacks = (
        FallbackSection(name="calm", set={"optim": {"lr": 3e-4, "clip": 0.25}}),
        FallbackSection(name="calmer", set={"optim": {"beta2": 0.9}}, reset=("optimizer",)),
    )
    found = [(step, make.finding("divergence", step)) for step in range(300, 390, 10)]
    plans, ledger = carried_out(make, found, limits=limits, fallbacks=fallbacks)
    assert [plan.fallback for plan in plans] == ["", "", "calm", "", "", "calmer", "", "", ""]
    assert plans[2].settings == {"optim.lr": 3e-4, "optim.clip": 0.25}
    assert plans[2].actions == ("rollback", "fallback")
    assert plans[3].settings == {"optim.lr": 1.5e-4}  # of what plan B asks for
    assert plans[5].reset == ("optimizer",)
    assert plans[5].rewarm_steps
    assert plans[8].stop
    assert plans[8].actions == ("stop",)
    assert "max_recoveries" in plans[8].reason
    assert "longhaul set" in plans[8].reason
    assert ledger.overrides_at(400)["optim.beta2"] == 0.9


def test_report_mode_tells_what_would_be_done_and_does_nothing(make):
    situation = make.under(make.situation(300), RecoverSection(mode="report"))
    plan = decide(situation, [make.finding("divergence", 300)])
    assert plan.actions == ("report",)
    assert not plan.effects
    assert not plan.stop
    assert "back to step 280" in plan.reason


def test_a_ladder_may_end_in_a_stop_and_an_unknown_kind_does_nothing(make):
    limits = RecoverSection.model_validate({"ladder": {"plateau": (("report",), ("stop",))}})
    found = [(step, make.finding("plateau", step)) for step in (300, 340)]
    plans, _ = carried_out(make, found, limits=limits)
    assert [plan.stop for plan in plans] == [False, True]
    assert decide(make.situation(300), [make.finding("never-heard-of", 300)]) is None


def test_a_plateau_may_fork_to_plan_b_but_never_goes_back(make):
    limits = RecoverSection.model_validate({"ladder": {"plateau": (("fallback",),)}})
    plan_b = FallbackSection(name="b", set={"optim": {"lr": 2e-3}})
    situation = make.under(make.situation(300), limits, (plan_b,))
    plan = decide(situation, [make.finding("plateau", 300, 99)])
    assert plan.actions == ("fallback",)
    assert plan.rollback is None


def test_a_person_who_sets_the_rate_has_asked_for_it(make):
    spike = make.finding("divergence", 300)
    plan = decide(make.situation(300), [spike])
    ledger = make.set(make.after(make.situation(300).ledger, plan, 300), "optim.lr", 7e-4)
    assert decide(make.situation(600, ledger)) is None  # nothing to raise to
    again = decide(make.situation(600, ledger), [make.finding("divergence", 600)])
    ledger = make.after(ledger, again, 600)
    plan = decide(make.situation(700, ledger))
    plan2 = decide(make.situation(800, make.after(ledger, plan, 700)))
    assert plan2.settings["optim.lr"] == 7e-4


def test_a_raise_that_fails_is_undone_and_tried_once_more_after_twice_the_wait(make):
    """No rise to within √2 of a rate that failed twice: the run stays at the highest that held."""
    recipe, fails_from, step = make.recipe(**CONSTANT), 6.5e-4, 300
    plan = decide(make.situation(step, recipe=recipe), [make.finding("divergence", step)])
    ledger, raised, undone = make.after(LedgerState(), plan, step), [], []
    while step < 2000:
        step += 10
        situation = make.situation(step, ledger, recipe)
        too_high = situation.settings.optim.lr > fails_from
        found = [make.finding("divergence", step)] if too_high else []
        plan = decide(situation, found)
        if plan is None:
            continue
        if found:
            undone.append(plan)
        else:
            raised.append(step)
        ledger = make.after(ledger, plan, step)
        step = plan.rollback.step if plan.rollback else step
    assert [plan.actions for plan in undone] == [("rollback", "undo")] * 2
    assert all(plan.settings == {"optim.lr": 5e-4} for plan in undone)
    assert raised[1] - raised[0] >= 100 > raised[0] - 300
    assert ledger.overrides_at(2000)["optim.lr"] == 5e-4


@pytest.mark.parametrize("shape", ["constant", "cosine"])
def test_what_failed_at_its_peak_may_be_borne_once_the_schedule_goes_below_it(make, shape):
    """Rates that failed are compared as they are in force."""
    recipe = make.recipe(optim={"lr": 1e-3, "schedule": {"shape": shape, "warmup_steps": 50}})
    plan = decide(make.situation(60, recipe=recipe), [make.finding("divergence", 60)])
    ledger = make.after(LedgerState(), plan, 60)
    for step in (120, 190):  # twice at the rate that failed
        plan = Plan(cause=PROBATION, actions=("raise-lr",), settings={"optim.lr": 1e-3},
                    old={"optim.lr": 5e-4}, reason="")  # fmt: skip
        ledger = make.after(ledger, plan, step)
        situation = make.situation(step + 10, ledger, recipe)
        ledger = make.after(
            ledger, decide(situation, [make.finding("divergence", step + 10)]), step + 10
        )
    highest = [rates(make.situation(step, ledger, recipe)).ceiling for step in (210, 400, 600, 900)]
    if shape == "constant":
        assert highest == pytest.approx([1e-3 / 2**0.5] * 4)
    else:
        assert highest == sorted(highest)
        assert highest[0] < 8e-4 < highest[1] < highest[-1] == 1e-3


# What holds for any findings in any order.

kinds = st.sampled_from([*HARMFUL, *sorted(SOUND_KINDS)])
severities = st.sampled_from(["notice", "warning", "alarm", "alarm"])
found = st.lists(st.tuples(kinds, severities, st.integers(0, 60)), max_size=2)
events = st.lists(
    st.tuples(st.integers(1, 40), found),
    min_size=1,
    max_size=30,
)  # fmt: skip
policies = st.builds(
    RecoverSection,
    max_recoveries=st.integers(0, 8),
    max_recoveries_per_cooldown=st.integers(0, 5),
    max_skipped_share=st.sampled_from([0.0, 0.02, 0.1]),
    min_lr_share=st.sampled_from([0.05, 0.3, 1.0]),
    lr_factor=st.sampled_from([0.1, 0.5, 0.9]),
)
ASKED = 1e-3


def flown(make, limits, story):
    """Every (situation, findings, plan) of a run in which findings come as told."""
    recipe, ledger = make.recipe(steps=2000, lr=ASKED), None
    step = 500  # the rate that was asked for has held so far
    for ahead, found in story:
        step += ahead
        findings = [
            make.finding(kind, step, max(step - age, 1), severity=severity)
            for kind, severity, age in found
        ]
        situation = make.under(make.situation(step, ledger, recipe), limits)
        plan = decide(situation, findings)
        yield situation, findings, plan
        if plan is not None:
            ledger = make.after(situation.ledger, plan, step)
            if plan.stop:
                return
            step = plan.rollback.step if plan.rollback else step


def test_a_rate_that_fails_from_its_start_is_left_in_a_few_growing_steps(make):
    """A hundred times too high: seven halvings, and the floor of a rate that has held, are not
    what such a run needs.
    """
    recipe, ledger = make.recipe(steps=2000, lr=1.0), None
    rates_set, step = [], 30
    while len(rates_set) < 4:
        situation = make.situation(step, ledger, recipe)
        plan = decide(situation, [make.finding("growth", step, step - 5)])
        ledger = make.after(situation.ledger, plan, step)
        rates_set.append(plan.settings["optim.lr"])
        step += 20
    assert rates_set == pytest.approx([1 / 2, 1 / 4, 1 / 16, 1 / 256])


def test_a_rate_that_has_held_is_lowered_to_its_floor_and_no_further(make):
    ledger, recipe = LedgerState(), make.recipe(steps=2000, lr=1.0)
    for step in range(900, 1000, 20):
        plan = decide(
            make.situation(step, ledger, recipe), [make.finding("growth", step, step - 5)]
        )
        ledger = make.after(ledger, plan, step)
        assert plan.settings.get("optim.lr", 1.0) >= RecoverSection().min_lr_share


@settings(max_examples=60, deadline=None)
@given(limits=policies, story=events)
def test_budgets_and_limits_hold_whatever_is_found(make, limits, story):
    costly, recipe = 0, make.recipe(steps=2000)
    for situation, _, plan in flown(make, limits, story):
        costly += plan is not None and not is_free(plan.actions)
        assert costly <= limits.max_recoveries
        skipped = sum(end - begin for begin, end in situation.ledger.skips)
        assert skipped <= limits.max_skipped_share * recipe.total_steps() * make.blocks
        rate = situation.settings.optim.lr
        assert ASKED * limits.min_lr_share * 0.999 <= rate <= ASKED


@settings(max_examples=60, deadline=None)
@given(limits=policies, story=events)
def test_a_rollback_leads_before_the_first_sign_and_a_skip_holds_its_data(make, limits, story):
    for _, findings, plan in flown(make, limits, story):
        if plan is None or plan.rollback is None:
            assert plan is None or plan.skip is None
            continue
        harmful = [f for f in findings if f.kind in HARMFUL and f.severity == "alarm"]
        if plan.undo:  # of a change that is younger than the estimate of the first sign
            assert all(plan.rollback.step <= change.step for change in plan.undo)
        else:
            assert all(plan.rollback.step < finding.first_step for finding in harmful)
        assert plan.cause not in SOUND_KINDS
        if plan.skip is not None:
            begin, end = plan.skip
            assert plan.rollback.draw <= begin <= plan.first_draw < end


@settings(max_examples=40, deadline=None)
@given(limits=policies, story=events)
def test_a_crash_and_a_fold_give_the_same_next_decision(make, limits, story):
    recipe = make.recipe(steps=2000, lr=ASKED)
    taken = []
    for situation, findings, plan in flown(make, limits, story):
        ledger = make.situation(0, None, recipe).ledger
        for step, earlier in taken:
            ledger = make.after(ledger, earlier, step)
        anew = make.under(make.situation(situation.step, ledger, recipe), limits)
        assert decide(anew, findings) == plan
        if plan is not None:
            taken.append((situation.step, plan))


@given(finding=kinds, severity=severities)
@settings(max_examples=40, deadline=None)
def test_sound_weights_are_never_rolled_back(make, finding, severity):
    plan = decide(make.situation(500), [make.finding(finding, 500, 400, severity=severity)])
    if finding in SOUND_KINDS and plan is not None:
        assert plan.rollback is None
        assert not plan.settings


def test_the_course_that_quiet_is_counted_from_delays_the_raise(make):
    plan = decide(make.situation(300), [make.finding("divergence", 300)])
    ledger = make.after(make.situation(300).ledger, plan, 300)
    course = (
        Course().after(make.step(340)).after(make.finding("loss-spike", 340, severity="warning"))
    )
    assert decide(make.situation(360, ledger)) is not None
    assert decide(make.situation(360, ledger, quiet_since=course.quiet_since)) is None
