"""Thermometers on their way to their danger lines."""

import math

import pytest


def growing(gauge, begin, doubling, layer=2):
    def grow(record):
        if not record.gauges or record.step < begin:
            return {}
        layers = list(record.gauges[gauge])
        layers[layer] *= 2 ** ((record.step - begin) / doubling)
        return {"gauges": {**record.gauges, gauge: tuple(layers)}}

    return grow


def test_n5_attention_logits_are_told_long_before_they_harm(made):
    grow = growing("attention_logit_max", 1000, 100)
    findings = made.told(made.judge(made.changed(made.healthy(2000), grow)), "growth")
    first = findings[0]
    assert first.severity == "warning"
    assert first.subject == "attention_logit_max[2]"
    crossing = 1000 + 100 * math.log2(100 / (2 * 1500**0.3 / 3))
    assert first.step <= crossing - 100
    assert abs(first.evidence["forecast_step"] - crossing) < 100
    assert abs(first.first_step - 1000) <= 100
    assert any(f.severity == "alarm" and f.step <= crossing + 50 for f in findings)


def test_a_gauge_without_a_line_is_held_against_the_age_of_the_run(made):
    grow = growing("residual_max", 1000, 60)
    (first, *_) = made.told(made.judge(made.changed(made.healthy(2000), grow)), "growth")
    assert first.subject == "residual_max[2]"
    assert first.step <= 1300


def test_activations_near_the_end_of_fp16_are_an_alarm(made):
    def large(record):
        gauges = {"residual_max": (20.0, 20_000.0)} if record.gauges else {}
        return {"gauges": gauges, "loss_scale": 1024.0}

    findings = made.told(made.judge(made.changed(made.healthy(400), large)), "growth", "alarm")
    assert [f.subject for f in findings] == ["residual_max[1]"]


@pytest.mark.parametrize("course", ["sqrt", "log", "line", "steps"])
def test_healthy_growth_is_slower_than_the_run_grows_old(made, course):
    """Growth as a small power of age must not be taken for the beginning of the end."""
    courses = {
        "sqrt": lambda step: 0.5 * step**0.5,
        "log": lambda step: 5 * math.log(step),
        "line": lambda step: 0.02 * step,
        "steps": lambda step: 10.0 if step < 900 else 25.0,
    }

    def grow(record):
        value = courses[course](record.step)
        return {"gauges": {"attention_logit_max": (value,)}} if record.gauges else {}

    assert made.told(made.judge(made.changed(made.healthy(1800), grow)), "growth") == []


def test_one_high_reading_is_no_growth(made):
    def peak(record):
        return {"gauges": {"attention_logit_max": (500.0,)}} if record.step == 500 else {}

    assert made.told(made.judge(made.changed(made.healthy(800), peak)), "growth") == []


def test_nan_readings_are_left_to_another_detector(made):
    def broken(record):
        return {"gauges": {"attention_logit_max": (math.nan, 3.0)}} if record.gauges else {}

    assert made.told(made.judge(made.changed(made.healthy(800), broken)), "growth") == []


def test_a_forecast_beyond_the_end_of_the_run_is_no_trouble(made):
    grow = growing("attention_logit_max", 1000, 100)
    records = made.changed(made.healthy(1300), grow)
    assert made.told(made.judge(records), "growth")
    assert made.told(made.judge(records, total_steps=1300), "growth") == []
