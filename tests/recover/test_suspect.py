"""The first suspect for a sign, and how it is undone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.config.recover import SOUND_KINDS, RecoverSection
from longhaul.core.records import Decision
from longhaul.logbook.changes import Change
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.recover.draft import asks_for_cause
from longhaul.recover.plan import Trouble, sizes_of
from longhaul.recover.policy import decide
from longhaul.recover.suspect import suspect

LIMITS = RecoverSection()
SIZES = sizes_of(LIMITS, 1000)
"""Margin and probation 20, the second moment's memory 20, cooldown 250."""
HARMFUL = (
    "non-finite", "loss-scale-collapse", "divergence", "loss-spike", "gradient-spike", "growth",
)  # fmt: skip


def change_at(step, path="optim.lr", before=1e-3, since=1.0, **values):
    defaults = {"how": "set", "who": "anna", "time": float(step)}
    return Change(step=step, settings={path: (before, since)}, **defaults | values)


@pytest.mark.parametrize(
    ("kind", "changed", "first_step", "step", "suspected"),
    [
        ("loss-spike", 300, 302, 305, True),
        ("loss-spike", 300, 340, 345, True),
        ("loss-spike", 300, 341, 345, False),  # the optimizer's memory of it is gone
        ("growth", 300, 310, 500, True),  # grew at leisure, from there on
        ("growth", 300, 290, 320, True),  # first signs are estimates
        ("growth", 300, 270, 320, False),
        ("non-finite", 300, 300, 301, False),  # and this is none
        ("loss-spike", 305, 302, 305, False),  # found before the change
    ],
)
def test_a_suspect_is_what_changed_just_before_the_sign(
    make, kind, changed, first_step, step, suspected
):
    sign = make.finding(kind, step, first_step)
    found = suspect([change_at(changed)], sign, make.recipe(), SIZES)
    assert (found is not None) is suspected


def test_the_newest_change_is_the_first_suspect_and_a_setting_bounds_how_old_it_may_be(make):
    changes = [change_at(280), change_at(300, "optim.beta2", 0.95, 0.5), change_at(100)]
    sign = make.finding("divergence", 310, 305)
    assert suspect(changes, sign, make.recipe(), SIZES) == changes[1]
    bounded = sizes_of(RecoverSection(suspect_steps=4), 1000)
    assert suspect(changes, sign, make.recipe(), bounded) is None
    assert suspect(changes[:1], sign, make.recipe(optim={"lr": 1e-3, "beta2": 0.5}), SIZES) is None


def test_a_weight_decay_is_given_the_time_that_it_needs_to_show(make):
    recipe = make.recipe(optim={"lr": 1e-3, "weight_decay": 10.0})  # a hundred steps
    sign = make.finding("growth", 420, 395)
    decay = change_at(300, "optim.weight_decay", 0.1, 10.0)
    assert suspect([decay], sign, recipe, SIZES) == decay
    assert suspect([change_at(300)], sign, recipe, SIZES) is None


@given(
    changed=st.lists(st.integers(0, 400), max_size=6),
    first_step=st.integers(1, 400),
    late=st.integers(0, 60),
    kind=st.sampled_from(HARMFUL),
)
def test_no_suspect_is_older_or_younger_than_may_be(make, changed, first_step, late, kind):
    sign = make.finding(kind, first_step + late, first_step)
    found = suspect([change_at(step) for step in changed], sign, make.recipe(), SIZES)
    may_be = [s for s in changed if first_step - 40 <= s < sign.step and s < first_step + 20]
    if found is None:
        assert kind == "non-finite" or not may_be
    else:
        assert found.step in may_be
        assert kind == "non-finite" or found.step == max(may_be)


# How it is undone.


def blamed(make, kind="divergence", step=310, first_step=302, good=None, **values):
    ledger = values.pop("ledger", None) or make.set(LedgerState(), "optim.lr", 1.0, 1e-3, 300)
    values.setdefault("states", good or make.safe(*range(200, 330, 10)))
    situation = make.situation(step, ledger, **values)
    return situation, decide(situation, [make.finding(kind, step, first_step)])


@pytest.mark.parametrize("kind", HARMFUL)
def test_every_kind_that_acts_undoes_the_change_first_and_says_who_made_it(make, kind):
    situation, plan = blamed(make, kind)
    assert plan.actions == ("rollback", "undo")
    assert plan.settings == {"optim.lr": 1e-3}
    assert plan.rollback.step == 300, "the newest before the change, and never past it"
    assert "after anna set optim.lr 0.001 → 1 at step 300" in plan.reason
    assert plan.skip is None
    assert plan.price["steps_lost_later"] == 0, "that rate was never to be learned from"
    assert not asks_for_cause(plan, LIMITS)
    after = make.after(situation.ledger, plan, 310)
    assert after.changes == ()
    assert after.undone("optim.lr", 1.0) == after.recoveries[0]


def losses(before, since, at=300, now=310):
    """Losses before a step and since, with some noise."""
    return tuple(
        (step, (before if step <= at else since) + 0.02 * (step % 5)) for step in range(1, now + 1)
    )


AHEAD_OF_THE_LOSS = ("gradient-spike", "growth", "loss-scale-collapse")


@pytest.mark.parametrize("kind", AHEAD_OF_THE_LOSS)
@pytest.mark.parametrize(("since", "undone"), [(2.0, False), (2.5, False), (2.7, True)])
def test_what_a_person_changed_is_undone_on_a_warning_only_where_the_loss_agrees(
    make, kind, since, undone
):
    ledger = make.set(LedgerState(), "optim.lr", 1.0, 1e-3, 300)
    here = {"states": make.safe(290, 300), "losses": losses(2.5, since)}
    situation = make.situation(310, ledger, **here)
    warning = make.finding(kind, 310, 302, severity="warning")
    plan = decide(situation, [warning])
    assert "after anna set optim.lr 0.001 → 1 at step 300" in plan.reason
    if undone:
        assert plan.actions == ("rollback", "undo")
        return
    assert plan.actions == ("report",), "neither undone nor lowered"
    assert "the loss is no worse than before" in plan.reason
    ledger = make.after(ledger, plan, 310)
    soon = make.situation(312, ledger, **here)
    assert decide(soon, [replace(warning, step=312)]) is None, "it is told once"
    alarm = make.finding(kind, 330, 302)
    plan = decide(make.situation(330, ledger, **here), [alarm])
    assert plan.actions == ("rollback", "undo"), "an alarm acts whatever the loss"
    plan = decide(make.situation(700, ledger), [make.finding(kind, 700)])
    assert "number 2" not in plan.reason, "a report is no rung of the ladder"


def test_a_warning_is_sign_enough_where_no_loss_from_before_the_change_is_known(make):
    ledger = make.set(LedgerState(), "optim.lr", 1.0, 1e-3, 300)
    situation = make.situation(310, ledger, states=make.safe(290, 300))
    warning = make.finding("growth", 310, 302, severity="warning")
    assert decide(situation, [warning]).actions == ("rollback", "undo")


@pytest.mark.parametrize("kind", ["non-finite", "loss-spike", "divergence"])
def test_a_loss_that_may_return_by_itself_undoes_nothing_before_the_alarm(make, kind):
    """Any change may unsettle a run for some steps, one that does good as well."""
    ledger = make.set(LedgerState(), "optim.lr", 1.0, 1e-3, 300)
    situation = make.situation(310, ledger, states=make.safe(290, 300), losses=losses(2.5, 4.0))
    warning = make.finding(kind, 310, 302, severity="warning")
    plan = decide(situation, [warning])
    assert plan is None or not plan.effects
    alarm = replace(warning, severity="alarm")
    assert decide(situation, [alarm]).actions == ("rollback", "undo")


def test_only_if_the_sign_returns_does_the_ladder_begin_and_no_budget_is_spent(make):
    situation, plan = blamed(make)
    ledger = make.after(situation.ledger, plan, 310)
    _, again = blamed(make, step=330, first_step=325, ledger=ledger)
    assert again.actions == ("rollback", "lower-lr")
    assert again.settings == {"optim.lr": 5e-4}
    assert "number 2" not in again.reason
    nothing_left = make.under(situation, RecoverSection(max_recoveries=0))
    assert decide(nothing_left, [make.finding("divergence", 310, 302)]) == plan


def test_who_sets_it_again_on_purpose_gets_it_and_the_ladder_then(make):
    situation, plan = blamed(make)
    ledger = make.after(situation.ledger, plan, 310)
    for value in (1.0, 2.0):
        insisted = make.set(ledger, "optim.lr", value, 1e-3, 320)
        _, again = blamed(make, step=330, first_step=325, ledger=insisted)
        assert "undo" not in again.actions
        assert again.settings["optim.lr"] == value / 2
    milder = make.set(ledger, "optim.lr", 0.01, 1e-3, 320)
    assert "undo" in blamed(make, step=330, first_step=325, ledger=milder)[1].actions


def test_nobody_is_robbed_of_a_probation_that_the_change_cut_short(make):
    trouble = Trouble(302, 310)
    _, plan = blamed(make, good=make.safe(200, 299), troubles=(trouble,))
    assert plan.rollback.step == 299
    older = Trouble(290, 299)
    _, plan = blamed(make, good=make.safe(200, 280, 299), troubles=(older, trouble))
    assert plan.rollback.step == 200, "what was in doubt before the change is so still"


def test_without_a_state_before_the_change_it_is_undone_in_place(make):
    _, plan = blamed(make, good=make.safe(305))
    assert plan.actions == ("undo",)
    assert plan.settings == {"optim.lr": 1e-3}


def test_what_was_changed_together_is_undone_together(make):
    ledger = make.set(LedgerState(), "optim.clip", 0.0, 1.0, 296)
    ledger = make.set(ledger, "optim.lr", 1.0, 1e-3, 300)
    ledger = make.set(ledger, "optim.lr", 2.0, 1.0, 301)
    ledger = make.set(ledger, "recover.max_recoveries", 3, 20, 302)
    _, plan = blamed(make, ledger=ledger, good=make.safe(200, 290))
    assert plan.rollback.step == 290
    assert plan.settings == {"optim.clip": 1.0, "optim.lr": 1e-3}
    assert len(plan.undo) == 3


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("optim.lr", 1e-3, 1e-4),
        ("optim.clip", 1.0, 0.5),
        ("recover.max_recoveries", 20, 3),
        ("evaluation.interval_steps", 10, 20),
        ("batch.micro_sequences", 8, 4),
    ],
)
def test_what_can_do_no_harm_is_no_suspect(make, path, old, new):
    ledger = make.set(LedgerState(), path, new, old, 300)
    assert "undo" not in blamed(make, ledger=ledger)[1].actions


def test_a_rate_that_the_policy_had_lowered_is_what_it_goes_back_to(make):
    """And from there up again to what was asked for before somebody interfered."""
    first = decide(make.situation(200), [make.finding("divergence", 200)])
    ledger = make.after(LedgerState(), first, 200)
    ledger = make.set(ledger, "optim.lr", 1.0, 5e-4, 240)
    _, plan = blamed(make, step=250, first_step=242, ledger=ledger)
    assert plan.settings == {"optim.lr": 5e-4}
    ledger = make.after(ledger, plan, 250)
    raised = []
    for step in range(250, 500, 10):
        if (up := decide(make.situation(step, ledger))) is not None:
            raised.append(up.settings["optim.lr"])
            ledger = make.after(ledger, up, step)
    assert raised[-1] == 1e-3


def restarted(step, who="anna", **data):
    return Decision(
        kind="restart", attempt=2, step=step, time=5.0, who=who, reason="", data=data
    )  # fmt: skip


def test_a_restart_with_other_settings_is_undone_and_software_is_named(make):
    tried = fold(LedgerState(), restarted(300, settings={"optim.lr": [1e-4, 1e-3]}))
    _, plan = blamed(make, ledger=tried)
    assert plan.settings == {"optim.lr": 1e-4}
    assert "after a restart by anna with optim.lr 0.0001 → 0.001 at step 300" in plan.reason
    torch = {"software.packages.torch": ["2.13", "2.14"]}
    newer = fold(LedgerState(), restarted(300, surroundings=torch))
    situation, plan = blamed(make, ledger=newer)
    assert plan.actions == ("rollback", "lower-lr"), "the ladder goes on"
    assert "software.packages.torch 2.13 → 2.14 at step 300" in plan.reason
    assert "which a live run cannot undo" in plan.reason
    strict = make.under(situation, RecoverSection(stop_for_surroundings=True))
    plan = decide(strict, [make.finding("divergence", 310, 302)])
    assert plan.stop
    assert "torch" in plan.reason


@pytest.mark.parametrize("kind", sorted(SOUND_KINDS))
def test_of_sound_weights_the_suspect_is_told_and_nothing_done(make, kind):
    _, plan = blamed(make, kind, first_step=305)
    assert plan.actions == ("report",)
    assert "after anna set optim.lr" in plan.reason


def test_who_wants_no_undoing_has_the_suspect_named(make):
    situation, _ = blamed(make)
    kept = make.under(situation, RecoverSection(undo=False))
    plan = decide(kept, [make.finding("divergence", 310, 302)])
    assert "lower-lr" in plan.actions
    assert "after anna set optim.lr" in plan.reason


def test_a_stage_of_the_mixture_is_planned_and_only_named(make):
    stages = [{"from_draw": 300 * make.blocks, "weights": {"synthetic": 2.0}}]
    sources = [{"path": "synthetic"}]
    recipe = make.recipe(data={"sources": sources, "stages": stages})
    spike = make.finding("loss-spike", 305, 303)
    plan = decide(make.situation(305, recipe=recipe), [spike])
    assert plan.actions == ("rollback", "skip")
    assert "after stage 1 of the mixture began, as planned, 2 steps before" in plan.reason
    late = make.finding("loss-spike", 405, 403)
    plan = decide(make.situation(405, recipe=recipe), [late])
    assert "stage" not in plan.reason


def test_of_several_raises_the_last_is_undone_and_then_the_ladder_begins(make):
    ledger = make.after(
        LedgerState(),
        decide(make.situation(200), [make.finding("divergence", 200)]),
        200,
    )
    for step in (240, 290):
        up = decide(make.situation(step, ledger))
        assert up.actions == ("raise-lr",)
        ledger = make.after(ledger, up, step)
    _, plan = blamed(
        make, step=310, first_step=310, ledger=ledger, good=make.safe(*range(0, 310, 10))
    )
    assert plan.actions == ("rollback", "undo")
    assert (plan.rollback.step, plan.settings) == (290, {"optim.lr": up.old["optim.lr"]})
    ledger = make.after(ledger, plan, 310)
    _, again = blamed(make, step=300, first_step=300, ledger=ledger)
    assert "lower-lr" in again.actions


# Where a change holds, as the ledger knows it.


def test_a_change_moves_back_with_a_run_that_goes_back_behind_it_and_keeps_it(make):
    ledger = make.set(LedgerState(), "optim.lr", 1.0, 1e-3, 300)
    assert fold(ledger, restarted(260)).changes[0].step == 260, "after a crash it holds from there"
    plan = replace(blamed(make)[1], undo=(), settings={}, actions=("rollback",))
    assert make.after(ledger, plan, 310, who="ben").changes[0].step == 300
    back = make.after(ledger, replace(plan, rollback=make.safe(280)[0]), 310, who="ben")
    assert back.changes[0].step == 280
    later = Decision(
        kind="set", attempt=1, step=100, from_step=400, time=0.0, who="anna", reason="",
        data={"path": "optim.lr", "value": 1.0, "old": 1e-3},
    )  # fmt: skip
    scheduled = fold(fold(LedgerState(), later), restarted(50))
    assert scheduled.changes[0].step == 400


def test_a_fork_is_undone_with_the_reset_that_it_came_with(make):
    data = {
        "cause": "asked", "subject": "anna", "actions": ["fork"], "set": {"optim.lr": 1.0},
        "old": {"optim.lr": 1e-3}, "reset": ["optimizer"], "rewarm_steps": 5,
        "rollback": {"from": 300, "to": 250, "draw": 2000},
    }  # fmt: skip
    asked = Decision(
        kind="recover", attempt=1, step=300, time=9.0, who="anna", reason="", data=data
    )
    ledger = fold(LedgerState(), asked)
    _, plan = blamed(make, step=260, first_step=252, ledger=ledger)
    assert plan.rollback.step == 250
    assert "after anna forked with optim.lr 0.001 → 1, a reset at step 250" in plan.reason
    after = make.after(ledger, plan, 260)
    assert [reset.what for reset in after.resets] == [()], "states from before keep their optimizer"
