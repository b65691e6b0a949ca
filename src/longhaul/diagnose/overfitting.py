"""Losses that do not mean what they say: validation loss rises while training loss falls, and a
loss lower than its text can honestly give.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from longhaul.config.diagnose import OverfittingLimits, TooGoodLimits
from longhaul.core.records import Event, Severity, StepRecord
from longhaul.diagnose.robust import SIGMA_PER_MAD, Levels, Window
from longhaul.diagnose.signs import HEALTHY, Change, Detector, Sign, Signs

_LEVEL_STEPS = 64
_RECENT_STEPS = 8
"""Losses whose median shows that the model is in a spike: its validation loss is then up too."""


@dataclass(frozen=True, slots=True)
class _Validation:
    record: StepRecord
    loss: float
    training: float  # level of the training loss at that time


class Overfitting(Detector):
    """Holds each evaluation against the best one."""

    def __init__(self, limits: OverfittingLimits) -> None:
        self._limits = limits
        self._training = Window(_LEVEL_STEPS)
        self._recent = Window(_RECENT_STEPS)
        self._whole_split: bool | None = None
        self._last: StepRecord | None = None
        self._history: deque[_Validation] = deque(maxlen=_LEVEL_STEPS)
        self._best: _Validation | None = None
        self._above = 0

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Follow the training loss; another mixture has another one."""
        if changed == "data":
            for kept in (self._training, self._recent, self._history):
                kept.clear()
            self._best, self._above = None, 0
        if math.isfinite(record.loss):
            self._training.push(record.loss)
            self._recent.push(record.loss)
        self._last = record
        return None

    def evaluated(self, event: Event) -> Signs:
        """Hold one evaluation against the best of those that read as much text as the first.

        The last of a run may read the whole split where the others read a part: it is passed over.
        """
        loss, training = _number(event.data.get("loss")), self._training.median
        if self._last is None or not math.isfinite(loss) or math.isnan(training):
            return None
        whole_split = bool(event.data.get("whole_split"))
        if self._whole_split is None:
            self._whole_split = whole_split
        # Where the last training losses are up themselves, it is a spike and no overfitting.
        in_a_spike = self._recent.median > training + self._training.deviation
        if whole_split != self._whole_split or in_a_spike:
            return None
        now = _Validation(self._last, loss, training)
        self._history.append(now)
        if self._best is None or loss < self._best.loss:
            self._best, self._above = now, 0
            return HEALTHY
        margin = max(self._limits.margin, self._limits.deviations * self._noise())
        fallen = self._best.training - training
        if loss - self._best.loss <= margin or fallen <= 0:
            self._above = 0
            return HEALTHY
        self._above += 1
        return (self._sign(event, now, self._best, margin),)

    def _noise(self) -> float:
        """Robust standard deviation of one evaluation about its neighbours', trends left out."""
        losses = [validation.loss for validation in self._history]
        triples = zip(losses, losses[1:], losses[2:], strict=False)
        bends = [abs(a - 2 * b + c) for a, b, c in triples]
        # The variance of a − 2b + c is six times that of each.
        return SIGMA_PER_MAD * median(bends) / math.sqrt(6) if len(bends) >= 4 else 0.0

    def _sign(self, event: Event, now: _Validation, best: _Validation, margin: float) -> Sign:
        severity: Severity = "notice"
        if self._above >= self._limits.evaluations:
            severity = "alarm" if self._above >= 2 * self._limits.evaluations else "warning"
        evidence = {
            "validation": now.loss,
            "best_validation": best.loss,
            "margin": margin,
            "training": now.training,
            "training_at_best": best.training,
        }
        epoch = _number(event.data.get("epoch"))
        where = ""
        if math.isfinite(epoch):
            evidence["epoch"] = epoch
            where = f", at epoch {epoch:.2f} of the data"
        sentence = (
            f"Validation loss has risen from {best.loss:.3f} at step {best.record.step} to "
            f"{now.loss:.3f} while training loss fell from {best.training:.3f} to "
            f"{now.training:.3f}{where}: the model learns its text by heart."
        )
        return Sign("overfitting", severity, best.record, sentence, evidence=evidence)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float | str) and value != "" else math.nan


_BEFORE = (0.6, 0.9)
"""Part of the run's age that a sudden drop is held against, long enough for spikes not to count."""
_COURSE_READINGS = 256
_DEVIATIONS = 5.0
"""Robust standard deviations of a level that a sudden drop must exceed. That of a source's level is
about half that of its readings, of which a few alone may look calm by chance."""
_LEAST_AGE = 320
"""Steps before sudden drops are judged: the loss of a young run falls as fast."""


class TooGood(Detector):
    """Judges the whole loss once a block of steps, and sources on gauge steps.

    Three rules: a level below what natural text allows; one source far below the others; a sudden
    drop by half, of a source while the others go on, or of the whole loss, within a tenth of the
    run's age. A falling learning rate lowers a loss by some per cent; another mixture resets all.
    """

    def __init__(self, limits: TooGoodLimits) -> None:
        self._limits = limits
        self._begin_anew()

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Sources are judged where there are several; else the whole loss."""
        if changed == "data":
            self._begin_anew()
        for source, loss in record.source_losses.items():
            if math.isfinite(loss):
                self._sources.setdefault(source, Window(self._limits.readings)).push(loss)
                course = self._courses.setdefault(source, deque(maxlen=_COURSE_READINGS))
                course.append((record.step, loss))
        if not math.isfinite(record.loss):
            return None
        if self._course.push(record.step, record.loss) and len(self._sources) < 2:
            return self._judge_whole(record)
        if record.source_losses and len(self._sources) >= 2:
            return self._judge_sources(record)
        return None

    def _begin_anew(self) -> None:
        self._course = Levels()
        self._sources: dict[str, Window] = {}
        self._courses: dict[str, deque[tuple[int, float]]] = {}
        self._since: dict[str, StepRecord] = {}

    def _judge_whole(self, record: StepRecord) -> Signs:
        level = self._course.last
        if level < self._limits.floor:
            return (self._below_floor(record, "", level),)
        begin, end = (share * record.step for share in _BEFORE)
        is_of_age = record.step >= _LEAST_AGE
        before = self._course.between(begin, end) if is_of_age else math.nan
        least = max(self._limits.drop * before, _DEVIATIONS * self._course.noise)
        if level < before - least:
            return (self._dropped(record, "", level, before),)
        self._since.pop("", None)
        return HEALTHY

    def _judge_sources(self, record: StepRecord) -> Signs:
        levels = {
            source: window.median
            for source, window in self._sources.items()
            if len(window) >= self._limits.readings
        }
        signs = []
        for source, level in levels.items():
            sign = self._judge_source(record, source, level, levels)
            if sign is None:
                self._since.pop(source, None)
            else:
                signs.append(sign)
        return tuple(signs) or HEALTHY

    def _judge_source(
        self, record: StepRecord, source: str, level: float, levels: Mapping[str, float]
    ) -> Sign | None:
        if level < self._limits.floor:
            return self._below_floor(record, source, level)
        others = [other for name, other in levels.items() if name != source]
        if others and level < self._limits.share * median(others):
            evidence = {"level": level, "others": median(others)}
            said = f"has a loss of {level:.3f} nats where the other sources have"
            return self._sign(record, source, evidence, f"{said} {median(others):.3f}")
        before, deviation = self._source_before(record, source)
        least = max(self._limits.drop * before, _DEVIATIONS * deviation / 2)
        if not level < before - least or self._all_fall(record, source, levels):
            return None
        return self._dropped(record, source, level, before)

    def _all_fall(self, record: StepRecord, source: str, levels: Mapping[str, float]) -> bool:
        """The other sources fall too: a decaying rate, not a leak."""
        others = [name for name in levels if name != source]
        befores = {name: self._source_before(record, name)[0] for name in others}
        rest = [1.0 if math.isnan(b) else levels[name] / b for name, b in befores.items()]
        return bool(rest) and median(rest) < 1 - self._limits.drop / 2

    def _source_before(self, record: StepRecord, source: str) -> tuple[float, float]:
        """Level of a source at the age of `_BEFORE`, and the deviation of its readings there."""
        begin, end = (share * record.step for share in _BEFORE)
        history = [reading for step, reading in self._courses[source] if begin <= step < end]
        if not history or record.step < _LEAST_AGE:
            return math.nan, math.nan
        level = median(history)
        return level, SIGMA_PER_MAD * median(abs(reading - level) for reading in history)

    def _below_floor(self, record: StepRecord, source: str, level: float) -> Sign:
        floor = self._limits.floor
        said = f"has a loss of {level:.3f} nats a token, less than natural text allows ({floor:g})"
        return self._sign(record, source, {"level": level, "floor": floor}, said)

    def _dropped(self, record: StepRecord, source: str, level: float, before: float) -> Sign:
        said = f"suddenly has a loss of {level:.3f} nats after {before:.3f}"
        return self._sign(record, source, {"level": level, "before": before}, said)

    def _sign(self, record: StepRecord, source: str, evidence: dict[str, float], said: str) -> Sign:
        first = self._since.setdefault(source, record)
        advice = (
            "look for leaked, repeated or escaped text with `longhaul data lint`; "
            f"`longhaul data at` with --step {record.step} names the documents"
        )
        text = f"Text of {source}" if source else "The text"
        return Sign("too-good", "warning", first, f"{text} {said}: {advice}.", source, evidence)
