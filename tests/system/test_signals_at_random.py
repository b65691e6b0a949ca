"""A notice in each phase of a run; `make drill-preempt` gives a hundred, some to two processes."""

import signal
from collections import Counter
from pathlib import Path

import pytest

from drills.moments import PHASES
from drills.preempt import Outcome, drill_preempt, strikes
from small_runs import FEW_HELD_OUT

SEED = 3
"""Of its four notices each comes in another phase, one of them twice and one to everyone, and all
three signals are among them."""
SHORT = (
    FEW_HELD_OUT, "train.steps=64", "batch.stages=[]", "batch.micro_sequences=16", "model.width=32",
    "evaluation.interval_steps=10", "evaluation.tokens=512", "checkpoint.interval_steps=8",
)  # fmt: skip


@pytest.mark.slow
def test_no_notice_costs_more_than_a_step_whenever_it_comes(tmp_path: Path) -> None:
    said: list[str] = []
    assert drill_preempt(4, SEED, tmp_path, said.append, SHORT), "\n".join(said)
    assert said[-1].startswith("4 signals")
    assert "exit codes: 16 (4 times)" in said
    (hit,) = (line for line in said if line.startswith("phases hit"))
    assert all(
        f"{phase} (1 times)" in hit for phase in ("start-up", "save", "evaluation", "ending")
    )
    struck = [line for line in said if line.startswith("signal ")]
    assert all(any(name in line for line in struck) for name in ("TERM", "USR1", "USR2"))
    assert any("to everyone" in line for line in struck)
    assert sum("byte-identical" in line for line in said) == 1


def test_strikes_come_in_every_phase_with_every_signal_and_a_seed_decides() -> None:
    made = strikes(100, 300, 2.0, seed=0)
    assert made == strikes(100, 300, 2.0, seed=0) != strikes(100, 300, 2.0, seed=1)
    assert Counter(strike.moment.phase for strike in made) == dict.fromkeys(PHASES, 25)
    assert {strike.phase for strike in made} == {*PHASES, "ending"}
    assert {s.number for s in made} == {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    assert {strike.everyone for strike in made} == {True, False}
    assert max(strike.moment.from_step for strike in made) < 300 * 0.75


def test_what_counts_as_a_promise_kept() -> None:
    assert Outcome(True, 16, reached=8, saved=7).fine
    assert not Outcome(True, 16, reached=8, saved=6).fine
    assert not Outcome(True, -15, reached=8, saved=8).fine
    assert not Outcome(True, 0, reached=8, saved=8).fine
