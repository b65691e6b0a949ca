"""Divergence."""

import random

import pytest

from longhaul.diagnose.divergence import _Noise


def test_a_loss_that_drifts_away_is_an_alarm_and_says_since_when(made):
    def rise(record):
        return {"loss": min(record.loss + 0.03 * max(0, record.step - 200), 11)}

    findings = made.told(made.judge(made.changed(made.healthy(400), rise)), "divergence")
    assert [f.severity for f in findings] == ["warning", "alarm"]
    assert findings[0].step <= 240
    assert 200 <= findings[0].first_step <= 212


def test_a_loss_above_that_of_the_start_is_an_alarm_early(made):
    def explode(record):
        return {"loss": record.loss * (1 + record.step / 60)} if record.step > 30 else {}

    findings = made.told(made.judge(made.changed(made.healthy(150), explode)), "divergence")
    assert findings[-1].severity == "alarm"
    assert findings[-1].step < 100


def test_a_loss_that_comes_back_has_not_diverged(made):
    def bump(record):
        return {"loss": record.loss + 3} if 300 <= record.step < 306 else {}

    assert made.told(made.judge(made.changed(made.healthy(400), bump)), "divergence") == []


def test_a_level_that_stays_a_third_of_a_nat_too_high_always_ends_as_divergence(made):
    def up(record):
        return {"loss": record.loss + 0.35} if record.step > 500 else {}

    records = made.changed(made.healthy(600, noise=0.04), up)
    findings = made.told(made.judge(records), "divergence", "alarm")
    assert findings
    assert findings[0].step <= 560
    assert 495 <= findings[0].first_step <= 510


def test_a_rate_that_was_raised_does_not_excuse_a_higher_loss(made):
    def raised(record):
        if record.step <= 300:
            return {}
        return {"loss": record.loss + 1.0, "learning_rate": 1e-2}

    findings = made.judge(made.changed(made.healthy(400), raised))
    assert made.told(findings, "divergence", "alarm")
    assert made.told(findings, "loss-spike", "alarm")


def test_a_slow_rise_of_a_young_run_is_told_where_it_began(made):
    """Its steep first steps say nothing about its noise."""
    rise = {150: 0.1, 151: 0.55, 152: 0.64, 153: 0.97, 154: 1.4}

    def jolted(record):
        fall = 5 * 0.98**record.step
        above = rise.get(record.step, max(0.7, 3.2 - (record.step - 161) / 10))
        return {"loss": 1.2 + fall + (above if record.step >= 150 else 0.0) + record.loss % 0.1}

    findings = made.loud(made.judge(made.changed(made.healthy(230), jolted)))
    assert {f.kind for f in findings} >= {"divergence", "loss-spike"}
    assert all(145 <= f.first_step <= 160 for f in findings)


def test_losses_that_hang_together_do_not_make_a_divergence(made):
    for seed, steps in ((0, 2000), (1, 2000), *((seed, 120) for seed in range(2, 40))):
        records = made.healthy(steps, seed, noise=0.3)
        assert made.told(made.judge(records), "divergence") == []


def test_a_smaller_rise_is_told_if_it_lasts(made):
    """Levels may be that high for a while by chance; three in a row that share no step are not."""

    def up(record):
        return {"loss": record.loss + 0.48} if record.step > 800 else {}

    records = made.changed(made.healthy(900, noise=0.1), up)
    (finding,) = made.told(made.judge(records), "divergence")
    assert finding.severity == "alarm"
    assert finding.step > 840


@pytest.mark.parametrize("begins", [2, 5, 12])
def test_a_run_that_leaves_at_once_is_told_within_thirty_steps(made, begins):
    """Without a warm-up: there is no best level yet, but the loss of knowing nothing is known."""

    def explodes(record):
        return {"loss": 5.5 + (0.4 * (record.step - begins) if record.step > begins else 0.0)}

    findings = made.told(made.judge(made.changed(made.healthy(60), explodes)), "divergence")
    assert findings[0].severity == "alarm"
    assert findings[0].step <= 30
    assert findings[0].first_step <= begins + 2


def test_a_first_step_that_was_lucky_makes_no_divergence(made):
    """H6: first steps are cold, and wander about the loss of knowing nothing."""
    for seed in range(30):
        dice = random.Random(seed)

        def wanders(record, dice=dice):
            return {"loss": max(3.0, 5.5 - 0.01 * record.step) + dice.gauss(0, 0.1)}

        records = made.changed(made.healthy(150), wanders)
        assert made.told(made.judge(records), "divergence") == []


def test_other_data_may_be_noisier(made):
    """H1: how noisy losses are is learned anew after a change of mixture."""
    for seed in range(20):
        dice = random.Random(seed)

        def harder(record, dice=dice):
            later = record.step > 150
            wander = dice.gauss(0, 0.6 if later else 0.05)
            return {"loss": 3.0 + wander, "mixture_stage": int(later)}

        records = made.changed(made.healthy(320), harder)
        assert made.told(made.judge(records), "divergence") == []


def test_that_levels_wander_is_believed_after_five_bends_and_not_before():
    """A few bends tell a step of the data from noise no better than a coin."""
    noise, level_steps = _Noise(4), 4
    known = []
    for number in range(8):
        level = float(number % 2)  # levels zigzag by 1 nat, losses within a level do not move
        for _ in range(level_steps):
            noise.push(level, level)
        known.append(noise.of_level())
    # Three levels make the first bend, so seven the fifth.
    assert known[5] == 0
    assert known[6] == pytest.approx(1.4826 * 2 / 6**0.5, rel=1e-3)
