"""Spikes: the loss jumps far above its level of the last steps, or less far and stays there; the
gradient norm jumps far above its level.
"""

import math
from collections import deque
from statistics import median
from typing import NamedTuple

from longhaul.config.diagnose import GradientSpikeLimits, LossSpikeLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.robust import Baseline, Noise, Window
from longhaul.diagnose.signs import HEALTHY, Change, Detector, Sign, Signs


class LossSpike(Detector):
    """Judges every finite loss."""

    def __init__(self, limits: LossSpikeLimits) -> None:
        self._limits = limits
        self._baseline = Baseline(limits.window_steps, limits.new_level_steps)
        self._first: StepRecord | None = None
        self._high_steps = 0
        self._highest = 0.0
        # Neighbours share losses: it takes more of them to tell what is usual.
        window_steps = limits.lasting_steps * limits.window_steps
        self._medians = Baseline(window_steps, limits.new_level_steps)
        self._last = Window(limits.lasting_steps)
        self._pending: deque[float] = deque()  # medians that share losses with the one judged
        self._records: deque[StepRecord] = deque(maxlen=limits.lasting_steps)
        self._lasting_steps = 0
        self._lasting_from: StepRecord | None = None

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """A loss is high if nothing like it was seen lately; a spike lasts until it is not."""
        if changed == "data":
            self._baseline.recentre()
            self._medians.recentre()
            for kept in (self._last, self._pending, self._records):
                kept.clear()
            self._first = None
        if not math.isfinite(record.loss):
            return None
        level = self._baseline.level
        high = self._is_high(record.loss, level)
        self._baseline.learn(record.loss, high)
        self._follow_median(record)
        if high:
            if self._first is None:
                self._first, self._high_steps, self._highest = record, 0, record.loss
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
        self._records.append(record)
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
        self._lasting_from = (self._lasting_from or self._records[0]) if high else None

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

    def _lasting_sign(self, loss: float, first: StepRecord) -> Sign:
        """High as one of many, not by itself."""
        level, now, steps = self._medians.level, self._last.median, float(self._lasting_steps)
        deviations = (now - level) / self._deviation_of_median()
        evidence = {"loss": loss, "level": level, "deviations": deviations, "steps": steps}
        sentence = (
            f"The loss rose from about {level:.3f} to {now:.3f} nats about step {first.step} "
            f"and stays up, though no step of it is unheard of by itself."
        )
        severity: Severity = "alarm" if self._lasting_steps >= self._limits.alarm else "warning"
        return Sign("loss-spike", severity, first, sentence, evidence=evidence)

    def _sign(self, record: StepRecord, level: float, first: StepRecord) -> Sign:
        severity: Severity = "notice"
        if self._lasting_steps or self._high_steps >= self._limits.warning:
            most = max(self._lasting_steps, self._high_steps)
            severity = "alarm" if most >= self._limits.alarm else "warning"
        lasts = "; nothing like it was seen in the steps before"
        if self._high_steps > 1:
            lasts = f" and has stayed up for {self._high_steps} steps"
        loss, steps = record.loss, float(self._high_steps)
        deviations = (loss - level) / max(self._baseline.noise.deviation, self._limits.floor)
        evidence = {"loss": loss, "level": level, "deviations": deviations, "steps": steps}
        jumped = f"The loss jumped from about {level:.3f} to {loss:.3f} nats"
        sentence = f"{jumped} at step {first.step}{lasts}."
        return Sign("loss-spike", severity, first, sentence, evidence=evidence)


_LONG_SPIKE_STEPS = 10
"""A norm that stays up this long counts as one more spike."""
_LEAST_LOSSES = Baseline.least_level
"""Needed since the first spike to tell harm: an odd batch has a high loss of its own, which is not
what its update did to the weights."""
_HARM_DEVIATIONS = 3.0
"""Standard deviations of the difference of two levels, from which on a rise is no chance."""
_LEAST_DEVIATION = 0.01
"""Nats: least one to reckon with."""


class _Spike(NamedTuple):
    """One spike of the gradient norm."""

    record: StepRecord
    loss: float
    """Level of the loss before it; infinite if unknown."""


class GradientSpike(Detector):
    """Judges every finite gradient norm.

    The norm is judged by its logarithm, in which healthy norms are about normal. What clipping
    absorbs is judged by the loss: spikes that repeat are a notice unless it lies above its level
    before the first of them by more than its noise. Counting begins anew where settings change: a
    spike that something was done about leads to nothing else.
    """

    def __init__(self, limits: GradientSpikeLimits, clips: bool) -> None:
        self._limits = limits
        self._clips = clips
        self._baseline = Baseline(limits.window_steps, limits.new_level_steps)
        self._spikes: deque[_Spike] = deque()
        self._high_steps = 0
        self._before: StepRecord | None = None
        self._losses: deque[tuple[int, float]] = deque(maxlen=Baseline.level_size)
        self._noise = Noise(3 * limits.window_steps // 4)
        # Level of the loss before spikes that something was done about; for spikes up to a step.
        self._sound, self._sound_until = math.inf, 0
        self.again = limits.alarm

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Steps in a row above the line are one spike; ten are another."""
        if changed:
            self._baseline.recentre()
        limits = self._limits
        while self._spikes and self._spikes[0].record.step <= record.step - limits.repeat_steps:
            self._spikes.popleft()
        self._count_anew(record, changed)
        norm = record.gradient_norm
        if not math.isfinite(norm) or norm <= 0 or record.masked:
            return None
        level, value = self._baseline.level, math.log(norm)
        high = value - level > limits.least and self._baseline.is_unheard_of(
            value, limits.deviations, limits.floor
        )
        self._baseline.learn(value, high)
        if high and (self._high_steps % _LONG_SPIKE_STEPS == 0 or not self._spikes):
            if not self._spikes and record.step > self._sound_until:
                self._sound = math.inf
            self._spikes.append(_Spike(record, self._loss_since(-1)))
        self._high_steps = self._high_steps + 1 if high else 0
        if math.isfinite(record.loss):
            self._losses.append((record.step, record.loss))
            self._noise.push(record.loss)
        return (self._sign(norm, math.exp(level), record),) if high else HEALTHY

    def _count_anew(self, record: StepRecord, changed: Change) -> None:
        before, self._before = self._before, record
        if changed == "data":
            # A loss says nothing beside those of other data.
            self._losses.clear()
            self._noise.renew()
            self._spikes.clear()
            self._sound = math.inf
        elif before is not None and before.segment != record.segment:
            if self._spikes:
                # Whether that helps is told by the loss from before it was needed.
                self._sound = min(self._sound, self._spikes[0].loss)
                self._sound_until = record.step + self._limits.repeat_steps
            self._spikes.clear()
            self._high_steps = 0

    def _loss_since(self, step: int) -> float:
        """Level of the last losses after a step; infinite if there are too few."""
        losses = [loss for when, loss in self._losses if when > step]
        return median(losses) if len(losses) >= _LEAST_LOSSES else math.inf

    def _rise(self) -> tuple[float, float] | None:
        """Level of the loss before the first spike, and now; None if it is no worse."""
        first = self._spikes[0]
        before, now = min(first.loss, self._sound), self._loss_since(first.record.step)
        deviation = max(self._noise.of_median(len(self._losses)), _LEAST_DEVIATION)
        worse = now - before > _HARM_DEVIATIONS * math.sqrt(2) * deviation
        return (before, now) if worse and math.isfinite(now) else None

    def _sign(self, norm: float, level: float, record: StepRecord) -> Sign:
        count, rise = len(self._spikes), self._rise() if self._clips else None
        evidence = {"gradient_norm": norm, "level": level, "spikes": float(count)}
        often = f"; {count} times within {self._limits.repeat_steps} steps"
        more = often if count > 1 else ", once"
        if rise is not None:
            before, now = rise
            evidence |= {"loss_before": before, "loss": now}
            more += f", and the loss rose from about {before:.3f} to {now:.3f} nats meanwhile"
        elif self._clips:
            more += ": clipping takes care of that" if count == 1 else ": clipping absorbs them"
        sentence = f"The gradient norm jumped from about {level:.3g} to {norm:.3g}{more}."
        severity: Severity = "notice"
        if count >= self._limits.warning and not record.warmup and (rise or not self._clips):
            severity = "alarm" if count >= self._limits.alarm else "warning"
        first = self._spikes[0].record
        return Sign("gradient-spike", severity, first, sentence, evidence=evidence)
