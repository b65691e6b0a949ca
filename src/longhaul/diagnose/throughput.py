"""Throughput drop: training takes longer a token than it did.

Only the buckets of training itself count, without waiting for data. Steps at which an evaluation or
a save is due, those right after them, those that compile, and the first of an attempt are left out;
steps that were seen complete together have each their share of the time (`train/drain.py`).
"""

from longhaul.config.diagnose import ThroughputLimits
from longhaul.core.records import StepRecord
from longhaul.diagnose.robust import Baseline
from longhaul.diagnose.signs import HEALTHY, Change, Detector, Sign, Signs

_BUCKETS = ("training", "redone")
_SPREAD_BLOCKS = 48
_NEW_LEVEL_BLOCKS = 100
_LEAST_DEVIATION = 0.02
"""Share of the level: times of equal work differ by that anywhere."""


class ThroughputDrop(Detector):
    """Judges once a block of steps."""

    def __init__(self, limits: ThroughputLimits) -> None:
        self._limits = limits
        self._attempt = 0
        self._cold = 0
        self._first: StepRecord | None = None
        self._slow: list[StepRecord] = []
        self._forget()

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Add the step to its block, and judge the block once it is full."""
        if record.attempt != self._attempt:
            self._attempt, self._cold = record.attempt, self._limits.cold_steps
        if changed == "data":
            self._forget()
        if self._cold or "compile" in record.seconds:
            self._cold = max(self._cold - 1, 0)
            return None
        if record.evaluation_due or record.save_due:
            self._cold = 1
            return None
        if self._first is None:
            self._first = record
        self._seconds += sum(record.seconds.get(bucket, 0.0) for bucket in _BUCKETS)
        self._tokens += record.tokens
        self._steps += 1
        if self._steps < self._limits.block_steps:
            return None
        return self._judge_block(self._first)

    def _forget(self) -> None:
        # Machines before another attempt are compared with those after it, batches are not.
        self._baseline = Baseline(_SPREAD_BLOCKS, _NEW_LEVEL_BLOCKS)
        self._slow.clear()
        self._empty_block()

    def _empty_block(self) -> None:
        self._seconds, self._tokens, self._steps, self._first = 0.0, 0, 0, None

    def _judge_block(self, first: StepRecord) -> Signs:
        seconds = self._seconds / self._tokens
        self._empty_block()
        if seconds <= 0:
            return None
        limits, level = self._limits, self._baseline.level
        slow = seconds > limits.slowdown * level and self._baseline.is_unheard_of(
            seconds, limits.deviations, _LEAST_DEVIATION * level
        )
        self._baseline.learn(seconds, slow)
        if not slow:
            self._slow.clear()
            return HEALTHY
        self._slow = [*self._slow, first][: limits.blocks]
        if len(self._slow) < limits.blocks:
            return HEALTHY
        usual, now, first = 1 / level, 1 / seconds, self._slow[0]
        evidence = {"tokens_per_second": now, "usual_tokens_per_second": usual}
        sentence = (
            f"Training has slowed down from {usual:,.0f} to {now:,.0f} tokens a second since step "
            f"{first.step}; evaluations and saves are not counted."
        )
        return (Sign("throughput-drop", "warning", first, sentence, evidence=evidence),)
