"""Made-up runs: a power-law loss with noise that hangs together, and anything a test puts in."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from longhaul.config.diagnose import DiagnoseSection
from longhaul.core.records import Finding, StepRecord
from longhaul.diagnose.diagnosis import Diagnosis

Change = Callable[[StepRecord], StepRecord]


def healthy(steps: int, seed: int = 0, noise: float = 0.05, **fixed: Any) -> list[StepRecord]:
    """Loss 1.5 + 9·(step + 10)^-0.3 with AR(1) noise, lognormal gradient norms, gauges each 25."""
    dice, drift, records = random.Random(seed), 0.0, []
    for step in range(1, steps + 1):
        drift = 0.8 * drift + 0.6 * dice.gauss(0, noise)
        values: dict[str, Any] = {
            "attempt": 1, "segment": "1.00", "step": step, "draw": 8 * (step - 1),
            "next_draw": 8 * step, "time": float(step), "sequences": 8, "sequence_length": 64,
            "loss": 1.5 + 9 * (step + 10) ** -0.3 + drift,
            "gradient_norm": 0.5 * dice.lognormvariate(0, 0.2),
            "learning_rate": 1e-3 * min(step / 20, 1.0), "warmup": step < 20,
            "seconds": {"training": 0.1 * dice.uniform(0.95, 1.1)},
        }  # fmt: skip
        if step % 25 == 0:
            age = step**0.3
            values["gauges"] = {
                "attention_logit_max": tuple(
                    2 * age * dice.lognormvariate(0, 0.05) / (1 + layer) for layer in range(4)
                ),
                "residual_max": tuple(3 * age * dice.lognormvariate(0, 0.1) for _ in range(4)),
            }
            values["totals"] = {
                "output_logit_max": 2 * age, "logsumexp_max": 6.0, "logsumexp_mean": 5.0,
                "update_ratio.matrix": 1e-3, "update_ratio.embedding": 2e-3,
                "gradient_norm.matrix": 0.4, "gradient_norm.embedding": 0.2,
                "weight_norm.matrix": 10 + age, "second_moment_ratio.matrix": 0.9,
            }  # fmt: skip
        records.append(StepRecord(**(values | fixed)))
    return records


def changed(
    records: Iterable[StepRecord], change: Callable[[StepRecord], dict[str, Any]]
) -> list[StepRecord]:
    return [replace(record, **change(record)) for record in records]


def judge(records: Iterable[Any], **arguments: Any) -> list[Finding]:
    limits = arguments.pop("limits", None) or DiagnoseSection()
    diagnosis = Diagnosis(limits, **arguments)
    return [finding for record in records for finding in diagnosis.observe(record)]


def told(findings: Iterable[Finding], kind: str, severity: str | None = None) -> list[Finding]:
    return [f for f in findings if f.kind == kind and severity in (None, f.severity)]


def loud(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity != "notice"]


class Made:
    """What the tests of this folder share."""

    healthy = staticmethod(healthy)
    changed = staticmethod(changed)
    judge = staticmethod(judge)
    told = staticmethod(told)
    loud = staticmethod(loud)


@pytest.fixture
def made() -> type[Made]:
    return Made


@pytest.fixture(scope="session")
def made_once() -> type[Made]:
    """The same for tests whose examples share a fixture."""
    return Made
