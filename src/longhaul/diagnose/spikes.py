"""Spikes: the loss jumps far above its level of the last steps, or less far and stays there; the
gradient norm jumps far above its level.
"""

import math
from collections import deque

from longhaul.config.diagnose import GradientSpikeLimits, LossSpikeLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.robust import Baseline, Window
from longhaul.diagnose.signs import HEALTHY, Change, Detector, Mark, Sign, Signs, mark


class LossSpike(Detector):
    """Judges every finite loss."""

    def __init__(self, limits: LossSpikeLimits) -> None:
        self._limits = limits
        self._baseline = Baseline(limits.window_steps, limits.new_level_steps)
        self._first: Mark | None = None
        self._high_steps = 0
        self._highest = 0.0
        # Neighbours share losses: it takes more of them to tell what is usual.
        window_steps = limits.lasting_steps * limits.window_steps
        self._medians = Baseline(window_steps, limits.new_level_steps)
        self._last = Window(limits.lasting_steps)
        self._pending: deque[float] = deque()  # medians that share losses with the one judged
        self._marks: deque[Mark] = deque(maxlen=limits.lasting_steps)
        self._lasting_steps = 0
        self._lasting_from: Mark | None = None

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """A loss is high if nothing like it was seen lately; a spike lasts until it is not."""
        if changed == "data":
            self._baseline.recentre()
            self._medians.recentre()
            self._last.clear()
            self._pending.clear()
            self._marks.clear()
            self._first = None
        if not math.isfinite(record.loss):
            return None
        level = self._baseline.level
        high = self._is_high(record.loss, level)
        self._baseline.learn(record.loss, high)
        self._follow_median(record)
        if high:
            if self._first is None:
                self._first, self._high_steps, self._highest = mark(record), 0, record.loss
            self._high_steps += 1
            self._highest = max(self._highest, record.loss)
            return (self._sign(record, level, self._first),)
        self._first = None
        if self._lasting_from is not None:
            return (self._lasting_sign(record.loss, self._lasting_from),)
        return HEALTHY

    def _follow_median(self, record: StepRecord) -> None:
        """Many steps that are each a little high are as unlikely as one that is very high.

        A median is learned only when it shares no loss with the one that is judged: a rise must
        not teach, step by step, how far up medians usually are.
        """
        self._last.push(record.loss)
        self._marks.append(mark(record))
        if len(self._last) < self._limits.lasting_steps:
            return
        limits, now = self._limits, self._last.median
        excess = now - self._medians.level
        high = excess > limits.least and self._medians.is_beyond_history(now)
        high = high and excess > limits.lasting_deviations * self._deviation_of_median()
        high = high and excess > limits.lasting_least * self._baseline.noise.deviation
        if high:
            self._pending.clear()
            self._medians.learn(now, flagged=True)
        else:
            self._pending.append(now)
            if len(self._pending) > limits.lasting_steps:
                self._medians.learn(self._pending.popleft(), flagged=False)
        self._lasting_steps = self._lasting_steps + 1 if high else 0
        self._lasting_from = (self._lasting_from or self._marks[0]) if high else None

    def _deviation_of_median(self) -> float:
        deviation = self._baseline.noise.of_median(self._limits.lasting_steps)
        return max(deviation, self._limits.floor)

    def _is_high(self, loss: float, level: float) -> bool:
        limits = self._limits
        if self._first is not None and loss - level > (self._highest - level) / 2:
            return True  # still up: half-way back is not back
        if loss - level <= limits.least:
            return False
        return self._baseline.is_unheard_of(loss, limits.deviations, limits.floor)

    def _lasting_sign(self, loss: float, first: Mark) -> Sign:
        """High as one of many, not by itself."""
        level, now = self._medians.level, self._last.median
        deviation = self._deviation_of_median()
        evidence = {
            "loss": loss,
            "level": level,
            "deviations": (now - level) / deviation,
            "steps": float(self._lasting_steps),
        }
        sentence = (
            f"The loss rose from about {level:.3f} to {now:.3f} nats about step {first.step} "
            f"and stays up, though no step of it is unheard of by itself."
        )
        severity: Severity = "alarm" if self._lasting_steps >= self._limits.alarm else "warning"
        return Sign("loss-spike", severity, first, sentence, evidence=evidence)

    def _sign(self, record: StepRecord, level: float, first: Mark) -> Sign:
        severity: Severity = "notice"
        if self._lasting_steps or self._high_steps >= self._limits.warning:
            steps = max(self._lasting_steps, self._high_steps)
            severity = "alarm" if steps >= self._limits.alarm else "warning"
        deviation = max(self._baseline.noise.deviation, self._limits.floor)
        lasts = "; nothing like it was seen in the steps before"
        if self._high_steps > 1:
            lasts = f" and has stayed up for {self._high_steps} steps"
        evidence = {
            "loss": record.loss,
            "level": level,
            "deviations": (record.loss - level) / deviation,
            "steps": float(self._high_steps),
        }
        sentence = (
            f"The loss jumped from about {level:.3f} to {record.loss:.3f} nats at step "
            f"{first.step}{lasts}."
        )
        return Sign("loss-spike", severity, first, sentence, evidence=evidence)


_LONG_SPIKE_STEPS = 10
"""A norm that stays up this long counts as one more spike."""


class GradientSpike(Detector):
    """Judges every finite gradient norm.

    The norm is judged by its logarithm, in which healthy norms are about normal.
    """

    def __init__(self, limits: GradientSpikeLimits) -> None:
        self._limits = limits
        self._baseline = Baseline(limits.window_steps, limits.new_level_steps)
        self._spikes: deque[Mark] = deque()
        self._high_steps = 0

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Steps in a row above the line are one spike; ten are another."""
        if changed:
            self._baseline.recentre()
        norm = record.gradient_norm
        if not math.isfinite(norm) or norm <= 0 or record.masked:
            return None
        limits, level = self._limits, self._baseline.level
        value = math.log(norm)
        high = value - level > limits.least and self._baseline.is_unheard_of(
            value, limits.deviations, limits.floor
        )
        self._baseline.learn(value, high)
        if not high:
            self._high_steps = 0
            return HEALTHY
        if self._high_steps % _LONG_SPIKE_STEPS == 0:
            self._spikes.append(mark(record))
        self._high_steps += 1
        while self._spikes[0].step <= record.step - limits.repeat_steps:
            self._spikes.popleft()
        return (self._sign(norm, math.exp(level), record),)

    def _sign(self, norm: float, level: float, record: StepRecord) -> Sign:
        count = len(self._spikes)
        often = ", once: clipping takes care of that"
        if count > 1:
            often = f"; {count} times within {self._limits.repeat_steps} steps"
        evidence = {"gradient_norm": norm, "level": level, "spikes": float(count)}
        sentence = f"The gradient norm jumped from about {level:.3g} to {norm:.3g}{often}."
        first, severity = self._spikes[0], self._severity(record)
        return Sign("gradient-spike", severity, first, sentence, evidence=evidence)

    def _severity(self, record: StepRecord) -> Severity:
        count = len(self._spikes)
        if count < self._limits.warning or record.warmup:
            return "notice"
        return "alarm" if count >= self._limits.alarm else "warning"
