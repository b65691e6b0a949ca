"""Gauges on their way to their danger lines."""

import math

import pytest

from longhaul.config.diagnose import GrowthLimits
from longhaul.diagnose.growth import steady_slope


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


def test_the_first_sign_is_where_the_last_growth_began_not_the_first_steps(made):
    """Logits grow a hundredfold in the first steps of any run; that is not to be rolled back."""

    def young(record):
        value = 5 * (1 - 0.98**record.step) * 2 ** (max(0, record.step - 1000) / 80)
        return {"gauges": {"attention_logit_max": (value,)}} if record.gauges else {}

    (first, *_) = made.told(made.judge(made.changed(made.healthy(1500), young)), "growth")
    assert 950 <= first.first_step <= 1100


def test_logits_that_stand_high_and_do_not_grow_are_no_alarm(made):
    for height, severity in ((70.0, "notice"), (150.0, "warning")):
        gauges = {"gauges": {"attention_logit_max": (height,)}}
        records = made.changed(made.healthy(800), lambda record, gauges=gauges: gauges)
        assert [f.severity for f in made.told(made.judge(records), "growth")] == [severity]


def test_a_layer_that_comes_to_where_the_others_are_is_healthy(made):
    def late(record):
        if not record.gauges:
            return {}
        late = min(0.01 * 2 ** (max(0, record.step - 1000) / 50), 20.0)
        return {"gauges": {"mlp_out_max_abs": (20.0 if record.step > 900 else 1.0, late)}}

    assert made.told(made.judge(made.changed(made.healthy(2000), late)), "growth") == []


def test_what_grows_with_the_rate_in_warm_up_is_healthy(made):
    def warming(record):
        value = 0.1 * 1.04 ** min(record.step, 300)
        gauges = {"gauges": {"mlp_out_max_abs": (value,)}} if record.gauges else {}
        return {"warmup": record.step < 300} | gauges

    assert made.told(made.judge(made.changed(made.healthy(700), warming)), "growth") == []


def totals(**of_step):
    def change(record):
        if not record.totals:
            return {}
        made = {name.replace("__", "."): value(record.step) for name, value in of_step.items()}
        return {"totals": {**record.totals, **made}}

    return change


def test_weights_that_grow_by_a_share_of_themselves_are_told(made):
    grow = totals(weight_norm__matrix=lambda s: 10 * 2 ** (max(0, s - 1000) / 100))
    (first, *_) = made.told(made.judge(made.changed(made.healthy(1600), grow)), "growth")
    assert first.subject == "weight_norm.matrix"
    assert first.step <= 1300


def test_weights_that_shrink_are_told_and_slow_decay_is_not(made):
    fast = totals(weight_norm__matrix=lambda s: 1 + 10 * 0.99 ** max(0, s - 1000))
    (finding,) = made.told(made.judge(made.changed(made.healthy(1300), fast)), "growth")
    assert finding.subject == "weight_norm.matrix"
    assert "shrunk" in finding.sentence
    assert 975 <= finding.first_step <= 1025
    slow = totals(weight_norm__matrix=lambda s: 10 * math.exp(-s / 450))
    assert made.told(made.judge(made.changed(made.healthy(500), slow)), "growth") == []


@pytest.mark.parametrize(("role", "readings", "told"), [
    ("matrix", 3, True), ("matrix", 2, False), ("embedding", 9, False),
])  # fmt: skip
def test_second_moments_count_where_every_weight_has_a_gradient(made, role, readings, told):
    high = totals(**{
        f"second_moment_ratio__{role}": lambda s: 4.0 if 500 <= s < 500 + 25 * readings else 0.5
    })  # fmt: skip
    assert bool(made.told(made.judge(made.changed(made.healthy(900), high)), "growth")) is told


def test_second_moments_far_below_their_line_have_no_trend(made):
    rising = totals(second_moment_ratio__matrix=lambda s: 0.2 * 1.01 ** max(0, s - 400))
    records = made.changed(made.healthy(640), rising)
    assert made.told(made.judge(records), "growth") == []


def test_weights_replaced_within_twenty_steps_learn_nothing(made):
    fast = totals(update_ratio__matrix=lambda s: 0.07 if s > 500 else 0.01)
    (finding,) = made.told(made.judge(made.changed(made.healthy(900), fast)), "growth")
    assert finding.subject == "update_ratio.matrix"
    assert finding.step == 650
    assert finding.evidence["stands_since"] == 500, "losses before it are those of before"


def test_weights_replaced_fast_are_told_although_a_reading_is_lower(made):
    fast = totals(update_ratio__matrix=lambda s: 0.04 if s % 100 == 0 else 0.06)
    (finding,) = made.told(made.judge(made.changed(made.healthy(900), fast)), "growth")
    assert finding.subject == "update_ratio.matrix"


def test_weights_replaced_ever_more_slowly_are_left_in_peace(made):
    slower = totals(update_ratio__matrix=lambda s: 0.06 if s <= 225 else 0.04)
    assert made.told(made.judge(made.changed(made.healthy(900), slower)), "growth") == []


TIMES = range(0, 100, 10)


def slope(course):
    return steady_slope(TIMES, [course(time) for time in TIMES], GrowthLimits())


def test_growth_by_a_share_of_itself_is_as_fast_as_it_is():
    assert slope(lambda time: 20 * 1.01**time) == pytest.approx(math.log(1.01))


@pytest.mark.parametrize("later", [0.0, 0.1, 0.2])
def test_what_flattens_is_healthy_though_it_has_grown_much(later):
    """It doubles, and then goes on at less than half that pace; no reading lies below another."""
    assert (
        slope(lambda time: 20 * 2 ** (min(time, 45) / 45 + later * max(0, time - 45) / 45)) is None
    )


def test_a_pace_that_is_kept_about_is_steady():
    course = slope(lambda time: 20 * 2 ** (min(time, 45) / 45 + 0.8 * max(0, time - 45) / 45))
    assert course == pytest.approx(0.8 * math.log(2) / 45, rel=0.05)


@pytest.mark.parametrize("broken", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_logarithm_has_no_pace(broken):
    assert slope(lambda time: broken if time == 50 else 20 * 1.02**time) is None
