"""Loss spikes and gradient spikes."""

import math


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


def test_gradient_spikes_again_and_again_become_an_alarm(made):
    def spikes(record):
        return {"gradient_norm": 20.0} if record.step > 500 and record.step % 13 == 0 else {}

    findings = made.told(made.judge(made.changed(made.healthy(800), spikes)), "gradient-spike")
    assert [f.severity for f in findings] == ["notice", "warning", "alarm"]
    assert findings[-1].step < 600
    assert findings[-1].first_step == 507


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
        return {"loss": record.loss + 0.22} if 500 <= record.step < 512 else {}

    findings = made.told(made.judge(made.changed(made.healthy(800, 2), stretch)), "loss-spike")
    assert [(f.severity, f.first_step) for f in findings] == [("warning", 498), ("alarm", 498)]
    assert findings[0].step == 503


def test_two_high_losses_do_not_last(made):
    def spike(record):
        return {"loss": record.loss + 3} if 500 <= record.step < 502 else {}

    assert made.loud(made.judge(made.changed(made.healthy(800), spike))) == []
