"""No progress, too slow progress, and groups that make none."""

import math
import random

import pytest


def flat_from(step):
    def flat(record):
        if record.step <= step:
            return {}
        fall = 9 * ((step + 10) ** -0.3 - (record.step + 10) ** -0.3)
        return {"loss": record.loss + fall}

    return flat


def test_n6_a_loss_that_stands_still_is_told_and_never_an_alarm(made):
    findings = made.judge(made.changed(made.healthy(3000, 1), flat_from(500)))
    assert [f.severity for f in made.told(findings, "plateau")] == ["notice", "warning"]
    assert findings[-1].step < 1600


def test_n6_so_is_one_that_never_moved(made):
    records = made.changed(made.healthy(800), lambda r: {"loss": 8.3 + 0.01 * (r.step % 3)})
    assert made.told(made.judge(records), "plateau", "warning")


def test_a_loss_that_flattens_at_the_end_of_its_decay_is_healthy(made):
    def decayed(record):
        rate = 1e-3 * max(0.0, 1 - record.step / 1000)
        return flat_from(820)(record) | {"learning_rate": rate}

    records = made.changed(made.healthy(1000, 1), decayed)
    assert made.told(made.judge(records, total_steps=1000), "plateau") == []


def small_updates(record):
    totals = {"update_ratio.matrix": 1e-5} if record.totals else {}
    return {"totals": totals, "loss": 8 + (record.loss - 3) * 0.02}


def test_n15_updates_far_too_small_and_a_loss_that_hardly_falls(made):
    (finding,) = made.told(
        made.judge(made.changed(made.healthy(800), small_updates)), "slow-progress"
    )
    assert finding.step <= 250


def test_n15_a_rate_lowered_too_far_is_held_against_the_runs_own_history(made):
    def lowered(record):
        if record.step <= 500:
            return {}
        totals = {"update_ratio.matrix": 1e-4} if record.totals else {}
        return flat_from(500)(record) | {"learning_rate": 1e-4, "totals": totals}

    findings = made.judge(made.changed(made.healthy(1200), lowered))
    (finding,) = made.told(findings, "slow-progress")
    assert finding.first_step == 501


def test_small_updates_that_make_progress_are_fine(made):
    def small(record):
        return {"totals": {"update_ratio.matrix": 1e-5}} if record.totals else {}

    records = made.changed(made.healthy(250, noise=0.0), small)
    assert made.told(made.judge(records), "slow-progress") == []


def test_n7_a_frozen_group_is_told_within_the_first_hundred_steps(made):
    def frozen(record):
        if not record.totals:
            return {}
        return {"totals": {**record.totals, "update_ratio.position": 0.0}}

    (finding,) = made.judge(made.changed(made.healthy(400), frozen))
    assert (finding.kind, finding.severity, finding.subject) == (
        "frozen-group", "warning", "position",
    )  # fmt: skip
    assert finding.step <= 100


def test_a_group_without_gradient_is_told_once(made):
    def frozen(record):
        if not record.totals:
            return {}
        zero = {"gradient_norm.position": 0.0, "update_ratio.position": 0.0}
        return {"totals": {**record.totals, **zero}}

    findings = made.judge(made.changed(made.healthy(400), frozen))
    assert [(f.kind, f.subject) for f in findings] == [("frozen-group", "position")]


def test_masked_steps_freeze_nothing(made):
    def masked(record):
        return {"masked": True, "loss_scale": 8.0} | (
            {"totals": {"update_ratio.matrix": 0.0}} if record.totals else {}
        )

    findings = made.judge(made.changed(made.healthy(200), masked))
    assert made.told(findings, "frozen-group") == []


def test_n15_a_model_that_has_learned_nothing_after_hundreds_of_steps(made):
    """Its loss falls by more than nothing, and yet is about that of its first step."""

    def creeping(record):
        totals = {"update_ratio.matrix": 2e-4} if record.totals else {}
        return {"totals": totals, "loss": 5.5 - 0.0005 * record.step}

    (finding,) = made.told(made.judge(made.changed(made.healthy(500), creeping)), "slow-progress")
    assert 220 <= finding.step <= 300


def test_n6_a_loss_that_came_to_rest_early_is_told_too(made):
    def flat(record):
        return {"loss": 2.302 + max(0.0, 0.01 * (60 - record.step)) + 1e-3 * (record.step % 3)}

    assert made.told(made.judge(made.changed(made.healthy(900), flat)), "plateau", "warning")


def test_a_loss_that_came_to_rest_in_its_first_steps_is_a_plateau_too(made) -> None:
    resting = made.changed(
        made.healthy(900, noise=0.01), lambda r: {"loss": 2.3 + 3.2 * math.exp(-r.step / 25)}
    )
    found = made.told(made.judge(resting), "plateau", "warning")
    assert [f.evidence["level"] for f in found] == [pytest.approx(2.3, abs=0.02)]
    assert made.told(made.judge(made.healthy(4000)), "plateau") == []


def test_n15_a_rate_lowered_too_far_during_warm_up_is_too(made):
    def lowered(record):
        if record.step <= 60:
            return {"learning_rate": 1e-5 * record.step, "warmup": True}
        totals = {"update_ratio.matrix": 1e-4} if record.totals else {}
        rate = {"learning_rate": 1e-7 * min(record.step, 100), "warmup": record.step < 100}
        return flat_from(60)(record) | rate | {"totals": totals}

    findings = made.judge(made.changed(made.healthy(600), lowered))
    (finding,) = made.told(findings, "slow-progress")
    assert finding.first_step == 61


def test_n6_a_run_that_learned_all_it_knows_at_once_is_told(made):
    def resting(record):
        return {"loss": 5.5 if record.step == 1 else record.loss - flattened[record.step] + 3.35}

    flattened = {r.step: 1.5 + 9 * (r.step + 10) ** -0.3 for r in made.healthy(500)}
    records = made.changed(made.healthy(500), resting)
    (finding,) = made.told(made.judge(records), "plateau", "warning")
    assert finding.step < 300


def test_n6_a_model_that_learned_next_to_nothing_is_told_whatever_its_updates(made):
    """Its loss falls all the time, and after 240 steps by a thirtieth of what it was."""
    records = made.changed(made.healthy(300), lambda r: {"loss": 5.5 - 7e-4 * r.step})
    (finding,) = made.told(made.judge(records), "plateau", "warning")
    assert finding.step <= 240


def test_n15_updates_of_half_the_usual_size_that_lead_nowhere(made):
    def creeping(record):
        totals = {"update_ratio.matrix": 4.5e-4} if record.totals else {}
        return {"totals": totals, "loss": 5.5 - 0.0025 * record.step}

    (finding,) = made.told(made.judge(made.changed(made.healthy(300), creeping)), "slow-progress")
    assert 220 <= finding.step <= 300


def test_n6_a_run_that_rests_is_told_before_its_two_hundredth_step(made):
    """A short run must have something left when it is told."""
    dice = random.Random(1)

    def resting(record):
        return {"loss": 3.3 + 2.2 * 0.8**record.step + dice.gauss(0, 0.03)}

    records = made.changed(made.healthy(220), resting)
    assert made.told(made.judge(records), "plateau", "warning")[0].step < 200
