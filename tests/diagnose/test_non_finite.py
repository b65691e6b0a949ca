"""NaN and infinity."""

import math

from longhaul.core.records import from_line, to_line


def test_one_masked_update_is_a_notice_and_more_are_an_alarm(made):
    def poisoned(record):
        bad = record.step == 100 or 300 <= record.step < 310
        return {"loss": math.nan, "gradient_norm": math.nan, "masked": True} if bad else {}

    findings = made.told(made.judge(made.changed(made.healthy(400), poisoned)), "non-finite")
    assert [(f.severity, f.step) for f in findings] == [
        ("notice", 100), ("notice", 300), ("warning", 301), ("alarm", 302),
    ]  # fmt: skip
    assert findings[-1].first_step == 300


def test_the_lowest_broken_layer_and_the_source_are_named(made):
    def poisoned(record):
        if record.step != 100:
            return {}
        return {
            "loss": math.inf, "masked": True,
            "gauges": {"mlp_out_rms": (1.0, 1.0, math.nan), "residual_rms": (1.0, math.nan, 1.0)},
            "source_losses": {"books": 3.0, "code": math.inf},
        }  # fmt: skip

    (finding,) = made.told(made.judge(made.changed(made.healthy(150), poisoned)), "non-finite")
    assert "residual_rms[1]" in finding.sentence
    assert "code" in finding.sentence


def test_an_overflow_that_lowers_the_loss_scale_is_everyday_life(made):
    def overflow(record):
        bad = record.step == 100
        norm = math.inf if bad else record.gradient_norm
        return {"gradient_norm": norm, "masked": bad, "loss_scale": 512.0 if bad else 1024.0}

    assert made.judge(made.changed(made.healthy(150), overflow)) == []


def test_what_was_not_held_back_is_an_alarm_at_once(made):
    def poisoned(record):
        return {"loss": math.nan} if record.step == 100 else {}

    (finding,) = made.told(made.judge(made.changed(made.healthy(150), poisoned)), "non-finite")
    assert finding.severity == "alarm"


def test_a_finding_read_from_the_journal_is_the_live_one(made):
    def poisoned(record):
        return {"loss": math.inf, "masked": True} if record.step in (100, 105) else {}

    for finding in made.judge(made.changed(made.healthy(150), poisoned)):
        read = from_line(to_line(finding))
        assert read == finding
        assert {type(value) for value in finding.evidence.values()} == {float}


def test_an_alarm_that_does_not_end_is_told_again_and_again(made):
    def ruined(record):
        bad = record.step >= 100
        return {"loss": math.nan, "gradient_norm": math.nan, "masked": True} if bad else {}

    findings = made.told(made.judge(made.changed(made.healthy(450), ruined)), "non-finite")
    assert [(f.severity, f.step) for f in findings] == [
        ("notice", 100), ("warning", 101), ("alarm", 102), ("alarm", 202), ("alarm", 302),
        ("alarm", 402),
    ]  # fmt: skip
