"""Too good: a loss lower than its text can honestly give (INCIDENTS N8).

Enters: step records, with losses by source on gauge steps. Leaves: warnings by source, which point
at the documents. Never knows: the text.

Three rules: a level below what natural text allows; one source far below the others; a sudden drop
by half, of a source while the others go on, or of the whole loss, within a tenth of the run's age:
easy text may lose a third in that time, learned fast but steadily. A falling learning rate (H4)
lowers a loss by some per cent; a change of mixture resets all.
"""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

from longhaul.config.diagnose import TooGoodLimits
from longhaul.core.records import StepRecord
from longhaul.diagnose.levels import Levels
from longhaul.diagnose.robust import SIGMA_PER_MAD, Window
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark

_BEFORE = (0.6, 0.9)
"""Part of the run's age that a sudden drop is held against, long enough for spikes not to count."""
_COURSE_READINGS = 256
_DEVIATIONS = 5.0
"""Robust standard deviations of a level that a sudden drop must exceed. That of a source's level is
about half that of its readings, of which a few alone may look calm by chance."""
_LEAST_AGE = 320
"""Steps before sudden drops are judged: the loss of a young run falls as fast."""


class TooGood(Detector):
    """Judges the whole loss once a block of steps, and sources on gauge steps."""

    def __init__(self, limits: TooGoodLimits) -> None:
        self._limits = limits
        self._begin_anew()

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Sources are judged where there are several; else the whole loss."""
        if changed == "data":
            self._begin_anew()
        if record.source_losses:
            self._take_sources(record)
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
        self._since: dict[str, Mark] = {}

    def _take_sources(self, record: StepRecord) -> None:
        for source, loss in record.source_losses.items():
            if math.isfinite(loss):
                window = self._sources.setdefault(source, Window(self._limits.readings))
                window.push(loss)
                course = self._courses.setdefault(source, deque(maxlen=_COURSE_READINGS))
                course.append((record.step, loss))

    def _judge_whole(self, record: StepRecord) -> Signs:
        level = self._course.last
        if level < self._limits.floor:
            return (self._below_floor(record, "", level),)
        before = self._whole_before(record)
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
            return self._sign(
                record,
                source,
                {"level": level, "others": median(others)},
                f"Text of {source} has a loss of {level:.3f} nats where the other sources have "
                f"{median(others):.3f}",
            )
        before, deviation = self._source_before(record, source)
        least = max(self._limits.drop * before, _DEVIATIONS * deviation / 2)
        if not level < before - least:
            return None
        if self._all_fall(record, source, levels):
            return None
        return self._dropped(record, source, level, before)

    def _all_fall(self, record: StepRecord, source: str, levels: Mapping[str, float]) -> bool:
        """The other sources fall too: a decaying rate, not a leak."""
        rest = []
        for name, level in levels.items():
            before, _ = self._source_before(record, name)
            if name != source:
                rest.append(1.0 if math.isnan(before) else level / before)
        return bool(rest) and median(rest) < 1 - self._limits.drop / 2

    def _whole_before(self, record: StepRecord) -> float:
        """Level of the whole loss at the age of `_BEFORE`."""
        if not self._is_of_age(record):
            return math.nan
        begin, end = _BEFORE
        return self._course.between(begin * record.step, end * record.step)

    def _source_before(self, record: StepRecord, source: str) -> tuple[float, float]:
        """The same of a source, and the deviation of its readings there."""
        if not self._is_of_age(record):
            return math.nan, math.nan
        begin, end = (share * record.step for share in _BEFORE)
        past = [reading for step, reading in self._courses[source] if begin <= step < end]
        if not past:
            return math.nan, math.nan
        level = median(past)
        return level, SIGMA_PER_MAD * median(abs(reading - level) for reading in past)

    def _is_of_age(self, record: StepRecord) -> bool:
        return record.step >= _LEAST_AGE

    def _below_floor(self, record: StepRecord, source: str, level: float) -> Sign:
        return self._sign(
            record,
            source,
            {"level": level, "floor": self._limits.floor},
            f"{_text_of(source)} has a loss of {level:.3f} nats a token, less than natural text "
            f"allows ({self._limits.floor:g})",
        )

    def _dropped(self, record: StepRecord, source: str, level: float, before: float) -> Sign:
        return self._sign(
            record,
            source,
            {"level": level, "before": before},
            f"{_text_of(source)} suddenly has a loss of {level:.3f} nats after {before:.3f}",
        )

    def _sign(
        self, record: StepRecord, source: str, evidence: dict[str, float], sentence: str
    ) -> Sign:
        first = self._since.setdefault(source, mark(record))
        advice = (
            "look for leaked, repeated or escaped text with `longhaul data lint`; "
            f"`longhaul data at` with --step {record.step} names the documents"
        )
        return Sign("too-good", "warning", first, f"{sentence}: {advice}.", source, evidence)


def _text_of(source: str) -> str:
    return f"Text of {source}" if source else "The text"
