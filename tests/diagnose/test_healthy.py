"""What must not trigger anything: INCIDENTS H1 to H7, and long runs with noise."""

import random

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "noise"), [(0, 0.02), (1, 0.1), (2, 0.3)])
def test_long_noisy_runs_are_left_in_peace(made, seed, noise):
    assert made.loud(made.judge(made.healthy(20_000, seed, noise))) == []


def test_h1_another_mixture_brings_another_loss(made):
    def up(record):
        return {"loss": record.loss + 1.0, "mixture_stage": 1} if record.step > 500 else {}

    assert made.judge(made.changed(made.healthy(900), up)) == []


def test_h1_the_same_step_of_the_loss_unscheduled_is_told(made):
    def up(record):
        return {"loss": record.loss + 1.0} if record.step > 500 else {}

    assert made.loud(made.judge(made.changed(made.healthy(900), up)))


def test_h2_a_curriculum_moves_every_metric(made):
    def longer(record):
        stage = min(record.step // 150, 3)
        return {
            "sequence_length": 64 * 2**stage,
            "loss": record.loss + 0.5 * (stage % 2),
            "gradient_norm": record.gradient_norm * 6 ** (stage % 2),
            "seconds": {"training": 0.1 * 4**stage},
            "gauges": {k: tuple(x * 3 for x in v) for k, v in record.gauges.items()}
            if stage % 2
            else record.gauges,
        }

    assert made.judge(made.changed(made.healthy(900), longer)) == []


@pytest.mark.parametrize("norm", [20.0, 1e4])
def test_h3_an_isolated_gradient_spike_is_at_most_noticed(made, norm):
    def spike(record):
        return {"gradient_norm": norm, "loss": record.loss + 0.1} if record.step == 500 else {}

    findings = made.judge(made.changed(made.healthy(900), spike))
    assert made.told(findings, "gradient-spike", "notice")
    assert made.loud(findings) == []


def test_h4_the_loss_falls_fast_while_the_rate_decays(made):
    def decay(record):
        done = max(record.step - 800, 0) / 200
        return {"loss": record.loss - 0.4 * done, "learning_rate": 1e-3 * (1 - done) + 1e-6}

    assert made.loud(made.judge(made.changed(made.healthy(1000), decay), total_steps=1000)) == []


def test_h5_small_batches_make_heavy_tails(made):
    dice = random.Random(5)

    def tails(record):
        student = dice.gauss(0, 0.15) / (dice.gammavariate(3, 1 / 3)) ** 0.5
        return {"loss": record.loss + student, "gradient_norm": 0.5 * dice.lognormvariate(0, 0.6)}

    assert made.loud(made.judge(made.changed(made.healthy(10_000), tails))) == []


def test_h6_the_first_steps_are_cold(made):
    def cold(record):
        if record.step > 5:
            return {}
        return {"loss": 11.0, "gradient_norm": 40.0, "seconds": {"training": 9.0, "compile": 30.0}}

    assert made.judge(made.changed(made.healthy(400), cold)) == []


def test_h6_so_are_those_of_another_attempt(made):
    def again(record):
        slow = {"seconds": {"training": 3.0}} if 501 <= record.step <= 504 else {}
        return slow | ({"attempt": 2, "segment": "1.01"} if record.step > 500 else {})

    assert made.judge(made.changed(made.healthy(900), again)) == []


def test_h7_evaluation_and_saving_take_their_time(made):
    def busy(record):
        due = record.step % 20 == 0
        slow = due or record.step % 20 == 1
        return {"evaluation_due": due, "seconds": {"training": 5.0 if slow else 0.1}}

    assert made.judge(made.changed(made.healthy(2000), busy)) == []


def test_a_loss_scale_finds_its_place_and_breathes(made):
    def scaled(record):
        scale = 65536.0 / 2 ** min(record.step, 9) * 2 ** (record.step // 300 % 2)
        return {"loss_scale": scale, "masked": record.step <= 9}

    assert made.judge(made.changed(made.healthy(2000), scaled)) == []
