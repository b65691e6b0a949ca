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
