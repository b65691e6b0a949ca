"""The loss scale of fp16."""


def sinking(every, begin=300):
    return lambda record: {"loss_scale": 65536.0 / 2 ** (max(0, record.step - begin) // every)}


def test_n4_a_sinking_scale_is_an_alarm_before_the_floor(made):
    records = made.changed(made.healthy(610), sinking(20))
    findings = made.told(made.judge(records), "loss-scale-collapse")
    alarm = findings[-1]
    assert alarm.severity == "alarm"
    assert alarm.step <= 300 + 16 * 20 - 150
    assert alarm.first_step == 320
    assert abs(alarm.evidence["forecast_step"] - 620) <= 80


def test_a_slow_sinking_is_first_a_warning(made):
    records = made.changed(made.healthy(1000), sinking(48))
    findings = made.told(made.judge(records), "loss-scale-collapse")
    assert [f.severity for f in findings] == ["warning", "alarm"]


def test_an_overflow_at_the_floor_is_an_alarm_at_once(made):
    def floor(record):
        return {"loss_scale": 1.0, "loss_scale_at_floor": record.step == 100}

    findings = made.told(made.judge(made.changed(made.healthy(200), floor)), "loss-scale-collapse")
    assert [(f.severity, f.step) for f in findings] == [("alarm", 100)]


def test_a_reset_scale_may_fall_to_its_place_again(made):
    def reset(record):
        after = record.step - 300
        return {"loss_scale": 128.0 if after < 0 else 65536.0 / 2 ** min(after, 9)}

    assert made.judge(made.changed(made.healthy(600), reset)) == []


def test_a_rise_before_the_first_fall_is_no_sign_of_it(made):
    def grown(record):
        return {"loss_scale": 2.0 if record.step < 290 else 1.0}

    records = made.changed(made.healthy(420), grown)
    records = made.changed(records, lambda r: {"loss_scale": 2048 * (
        sinking(20)(r)["loss_scale"] / 65536 * (1 if r.step < 290 else 2))})  # fmt: skip
    findings = made.told(made.judge(records), "loss-scale-collapse")
    assert findings
    assert findings[0].first_step == 320


def test_the_floor_of_the_recipe_is_what_counts(made):
    records = made.changed(made.healthy(700), sinking(45))
    far = made.told(made.judge(records), "loss-scale-collapse")
    near = made.told(made.judge(records, least_scale=512.0), "loss-scale-collapse")
    assert far[0].severity == "warning"
    assert [f.severity for f in near][-1] == "alarm"
    assert near[-1].step < 600


def test_after_a_cure_in_place_the_next_collapse_has_its_own_beginning(made):
    """A reset scale needs no rollback; what was cured may not be blamed for what comes later."""

    def twice(record):
        if record.step < 480:
            return sinking(20)(record)
        settled = 65536.0 / 2 ** min(record.step - 480, 3)
        return {"loss_scale": settled / 2 ** (max(0, record.step - 520) // 20)}

    findings = made.told(made.judge(made.changed(made.healthy(800), twice)), "loss-scale-collapse")
    after = [f for f in findings if f.step > 500]
    assert after
    assert all(f.first_step >= 520 for f in after)
