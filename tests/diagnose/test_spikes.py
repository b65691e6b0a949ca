"""Loss spikes and gradient spikes."""

import math
import random
from dataclasses import replace

import pytest


def test_a_loss_that_jumps_and_stays_is_an_alarm_within_ten_steps(made):
    def jump(record):
        return {"loss": record.loss + 2} if 500 <= record.step < 530 else {}

    findings = made.told(made.judge(made.changed(made.healthy(800), jump)), "loss-spike")
    assert [(f.severity, f.step) for f in findings] == [
        ("notice", 500), ("warning", 502), ("alarm", 509),
    ]  # fmt: skip
    assert all(f.first_step == 500 and f.first_draw == 8 * 499 for f in findings)


def test_a_loss_spike_that_returns_is_a_notice_and_out_of_its_own_baseline(made):
    def spikes(record):
        return {"loss": record.loss + 2} if record.step in (500, 560, 620) else {}

    findings = made.told(made.judge(made.changed(made.healthy(800), spikes)), "loss-spike")
    assert [(f.severity, f.step) for f in findings] == [
        ("notice", 500), ("notice", 560), ("notice", 620),
    ]  # fmt: skip


def test_nan_and_infinity_leave_the_baselines_as_they_were(made):
    def broken(record):
        bad = {100: math.nan, 200: math.inf, 300: -math.inf}.get(record.step)
        if bad is not None:
            return {"loss": bad, "gradient_norm": bad, "masked": True}
        return {"loss": record.loss + 2} if record.step == 310 else {}

    findings = made.judge(made.changed(made.healthy(400), broken))
    assert [f.step for f in made.told(findings, "loss-spike")] == [310]


def spiking(made, *, up=0.0, acted=(), until=800):
    """A spike every 13 steps from 507 on. The loss is higher by `up` from 510 on and up to `until`;
    segments begin after the steps in `acted`."""

    def spike(record):
        change = {"segment": f"1.{sum(record.step > step for step in acted):02d}"}
        if record.step > 500 and record.step % 13 == 0:
            change["gradient_norm"] = 20.0
        if 510 <= record.step <= until:
            change["loss"] = record.loss + up
        return change

    return made.changed(made.healthy(800), spike)


def test_gradient_spikes_again_and_again_become_an_alarm_without_clipping(made):
    findings = made.told(made.judge(spiking(made), clips=False), "gradient-spike")
    assert [f.severity for f in findings][:3] == ["notice", "warning", "alarm"]
    assert findings[2].step < 600
    assert {f.first_step for f in findings[:3]} == {507}


@pytest.mark.parametrize("up", [0.0, -0.5])
def test_gradient_spikes_that_clipping_absorbs_are_judged_by_the_loss(made, up):
    findings = made.told(made.judge(spiking(made, up=up)), "gradient-spike")
    assert [f.severity for f in findings] == ["notice"]
    assert findings[0].step == 507


def test_gradient_spikes_that_raise_the_loss_become_an_alarm_though_they_are_clipped(made):
    findings = made.told(made.judge(spiking(made, up=0.6)), "gradient-spike")
    assert [f.severity for f in findings][:3] == ["notice", "warning", "alarm"]
    evidence = findings[1].evidence
    assert evidence["loss"] - evidence["loss_before"] == pytest.approx(0.6, abs=0.1)
    assert "the loss rose from about" in findings[1].sentence
    assert findings[1].first_step == 507


@pytest.mark.parametrize("known", [{}, {"clips": False}])
def test_gradient_spikes_that_led_to_an_action_do_not_lead_to_the_next(made, known):
    """Acted on at the fourth, at step 546: only spikes after it count."""
    findings = made.judge(spiking(made, up=0.6, acted=(546,)), **known)
    loud = made.loud(made.told(findings, "gradient-spike"))
    assert [(f.severity, f.step) for f in loud][:2] == [("warning", 546), ("alarm", 624)]
    assert loud[1].first_step == 559
    assert loud[1].evidence["spikes"] == 6


def test_a_crash_right_after_an_action_does_not_bring_its_spikes_back(made):
    records = [
        replace(r, attempt=2, segment="2.00") if r.step > 546 else r for r in spiking(made, up=0.6)
    ]
    loud = made.loud(made.told(made.judge(records), "gradient-spike"))
    assert loud[0].step == 546
    assert all(f.first_step > 546 for f in loud[1:])


def test_an_alarm_that_was_acted_on_is_told_again_after_as_many_spikes_more(made):
    findings = made.judge(spiking(made, acted=(572,)), clips=False)
    steps = [f.step for f in made.told(findings, "gradient-spike", "alarm")]
    assert steps[:2] == [572, 650]


def test_after_an_action_the_loss_is_held_against_what_it_was_before_the_spikes(made):
    """It stays up: the action did not help. It comes down: it did, whatever the gradients do."""
    up, down = (
        made.judge(spiking(made, up=0.6, acted=(546,), until=until)) for until in (800, 546)
    )
    assert made.told(up, "gradient-spike", "alarm")[0].evidence["loss_before"] == pytest.approx(
        made.told(up, "gradient-spike", "warning")[0].evidence["loss_before"], abs=0.1
    )
    assert [f.step for f in made.loud(made.told(down, "gradient-spike"))] == [546]


def test_a_loss_that_other_data_raise_is_no_harm_of_gradient_spikes(made):
    records = [
        replace(r, mixture_stage=int(r.step >= 510)) for r in spiking(made, up=0.6)
    ]  # fmt: skip
    assert made.loud(made.told(made.judge(records), "gradient-spike")) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_losses_that_are_not_finite_say_nothing_about_gradient_spikes(made, loss):
    records = [replace(r, loss=loss) if r.step % 3 == 0 else r for r in spiking(made)]
    assert made.loud(made.told(made.judge(records), "gradient-spike")) == []


def test_a_new_level_of_the_gradient_is_learned(made):
    def up(record):
        return {"gradient_norm": record.gradient_norm * 10} if record.step > 500 else {}

    findings = made.told(made.judge(made.changed(made.healthy(2000), up)), "gradient-spike")
    assert findings
    assert findings[-1].step < 600


def test_a_jump_soon_after_the_steep_first_steps_is_seen(made):
    """A falling curve is no noise: neighbours tell what is."""

    def young(record):
        loss = 2.0 + 4 * 0.97**record.step + (record.loss % 0.2)
        return {"loss": loss + (0.7 if record.step >= 122 else 0.0)}

    findings = made.judge(made.changed(made.healthy(140), young))
    assert [f.step for f in made.told(findings, "loss-spike", "warning")] == [124]


def test_three_gradient_spikes_of_a_small_batch_are_told_and_no_more(made):
    def spikes(record):
        return {"gradient_norm": 9.0} if record.step in (500, 520, 560) else {}

    findings = made.judge(made.changed(made.healthy(800), spikes))
    assert made.told(findings, "gradient-spike", "notice")
    assert made.loud(findings) == []


def test_many_losses_each_a_little_high_are_told_though_none_is_by_itself(made):
    def stretch(record):
        return {"loss": record.loss + 0.18} if 500 <= record.step < 512 else {}

    findings = made.told(made.judge(made.changed(made.healthy(800, 2), stretch)), "loss-spike")
    assert [(f.severity, f.first_step) for f in findings] == [("warning", 498), ("alarm", 498)]
    assert findings[0].step == 503


def test_two_high_losses_do_not_last(made):
    def spike(record):
        return {"loss": record.loss + 3} if 500 <= record.step < 502 else {}

    assert made.loud(made.judge(made.changed(made.healthy(800), spike))) == []


def young(steps=200, seed=0, noise=0.12):
    """The loss of a young run: a steep fall, and noise that does not hang together."""
    dice = random.Random(seed)
    return {step: 2.4 + 3.2 * 0.97**step + dice.gauss(0, noise) for step in range(1, steps + 1)}


@pytest.mark.parametrize("seed", range(4))
def test_a_faint_stretch_of_a_young_run_is_told(made, seed):
    """It comes up over four steps, which must not teach that medians are as high as that."""
    loss = young(seed=seed)

    def faint(record):
        up = 0.55 * min(1.0, max(0, record.step - 139) / 4) if record.step < 156 else 0.0
        return {"loss": loss[record.step] + up}

    findings = made.told(made.judge(made.changed(made.healthy(200), faint)), "loss-spike")
    assert [f.severity for f in made.loud(findings)][:1] == ["warning"]
    assert all(134 <= f.first_step <= 146 and f.step <= 155 for f in made.loud(findings))


def test_young_runs_as_they_are_have_no_such_stretch(made):
    for seed in range(30):
        loss = young(seed=seed)
        records = made.changed(made.healthy(200), lambda r, loss=loss: {"loss": loss[r.step]})
        assert made.loud(made.judge(records)) == []


def test_other_data_may_be_noisier(made):
    """H1: how noisy losses are is learned anew after a change of mixture."""
    for seed in range(12):
        calm, wild = young(400, seed, noise=0.08), young(400, seed + 50, noise=0.25)

        def harder(record, calm=calm, wild=wild):
            later = record.step > 200
            loss = (wild if later else calm)[record.step]
            return {"loss": loss, "mixture_stage": int(later)}

        assert made.loud(made.judge(made.changed(made.healthy(400), harder))) == []


def test_a_stretch_does_not_hide_the_next(made):
    """Medians that share losses with its beginning are not learned from."""
    loss = young(seed=6)

    def twice(record):
        first, second = 120 <= record.step < 132, 156 <= record.step < 168
        return {"loss": loss[record.step] + 0.5 * first + 0.45 * second}

    findings = made.told(made.judge(made.changed(made.healthy(200), twice)), "loss-spike")
    assert [f.first_step for f in made.loud(findings)] == [120, 158]
