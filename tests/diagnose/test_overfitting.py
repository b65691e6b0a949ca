"""Validation turning up."""

import random

import pytest

from longhaul.core.records import Event


@pytest.fixture
def with_evaluations(made):
    def build(records, validation, **data):
        for record in records:
            yield record
            if record.step % 100 == 0:
                yield Event(
                    kind="evaluation", attempt=1, step=record.step, time=record.time,
                    data={"loss": validation(record)} | data,
                )  # fmt: skip

    return build


def test_n14_validation_that_turns_is_told_with_its_epoch(made, with_evaluations):
    def turning(record):
        return 4.0 - 0.001 * record.step + 0.003 * max(0, record.step - 800)

    findings = made.judge(with_evaluations(made.healthy(1600), turning, epoch=2.0))
    told = made.told(findings, "overfitting")
    assert [f.severity for f in told] == ["notice", "warning", "alarm"]
    assert told[1].step <= 1000
    assert told[0].first_step == 800
    assert told[0].evidence["epoch"] == 2.0


def test_noise_of_validation_is_no_turn(made, with_evaluations):
    dice = random.Random(7)

    def noisy(record):
        return 4.0 - 0.0003 * record.step + dice.gauss(0, 0.05)

    assert made.loud(made.judge(with_evaluations(made.healthy(3000), noisy))) == []


def test_both_losses_rising_is_divergence_not_overfitting(made, with_evaluations):
    def rise(record):
        return {"loss": record.loss + 0.01 * max(0, record.step - 500)}

    records = made.changed(made.healthy(1000), rise)
    findings = made.judge(with_evaluations(records, lambda r: r.loss + 0.1))
    assert made.told(findings, "overfitting") == []
    assert made.told(findings, "divergence")


def test_the_last_evaluation_reads_other_text_and_is_not_compared(made):
    def build():
        for record in made.healthy(1600):
            yield record
            if record.step % 100 == 0:
                last = record.step > 1200
                loss = 4.0 - 0.001 * record.step + (1.5 if last else 0.0)
                yield Event(kind="evaluation", attempt=1, step=record.step, time=record.time,
                            data={"loss": loss, "whole_split": last})  # fmt: skip

    assert made.told(made.judge(build()), "overfitting") == []


def test_a_validation_that_falls_into_a_loss_spike_is_no_overfitting(made, with_evaluations):
    def spiked(record):
        return {"loss": record.loss + 20} if 790 < record.step <= 800 else {}

    records = made.changed(made.healthy(1000), spiked)
    findings = made.judge(with_evaluations(records, lambda r: r.loss + 0.1))
    assert made.told(findings, "overfitting") == []
