"""Too little progress: the loss stands still although its own earlier progress predicts more,
updates are too small to get anywhere, a role of weights does not train.
"""

import math
from dataclasses import dataclass

from longhaul.config.diagnose import FrozenGroupLimits, PlateauLimits, SlowProgressLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.robust import Levels, Window
from longhaul.diagnose.signs import HEALTHY, Change, Detector, Sign, Signs

_LASTS_SHARE = 0.25
"""Share of its first step that a plateau must last to be a warning: some losses only rest."""
_DEVIATIONS = 5.0
"""Robust standard deviations of a block's level that a fall must exceed to be trusted."""
_END_SHARE = 0.9
_FIRST_SHARE, _FIRST_FALL, _YOUNG = 1 / 8, 0.5, 3
"""Share of a run's age in which it must not have learned nearly all it knows, the factor on
`progress_share` that says how nearly, and the age until which that holds, in `least_steps`: old
models learn ever more slowly."""
_STRETCHES = ((1 / 4, 1 / 2, 1.0), (1 / 16, 1 / 4, 0.5))
"""Ages, as shares of the present one, between which the loss must have fallen, and the factor on
`progress_share`. A loss that came to rest early has no fall to show in the nearer stretch; over the
longer one a power law of exponent 1 still falls by a quarter as much as before."""


@dataclass(frozen=True, slots=True)
class _Still:
    """A plateau that goes on until the loss falls again."""

    since: StepRecord
    level: float
    least_fall: float
    """Nats below that level that would end it."""
    why: str


class Plateau(Detector):
    """Judges once a block of steps.

    Rule: over the last three quarters of the run's age, the loss of a healthy run falls as a power
    law, so its fall in the later two thirds of that stretch is most of its fall in the first third.
    A plateau is a fall there of less than `progress_share` of it; the same is asked of a longer
    stretch. A loss that has hardly moved since the first step is one too, and so is that of a young
    run which fell in its first steps only. Not judged: warm-up, a decayed learning rate, the last
    tenth of the run. A rate lowered by a decision has not decayed.
    """

    def __init__(self, limits: PlateauLimits, total_steps: int | None) -> None:
        self._limits = limits
        self._total_steps = total_steps
        self._levels = Levels()
        self._peak_rate = 0.0
        self._warm_from = 0
        self._still: _Still | None = None
        self._first_loss = math.nan

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Hold the latest progress against the progress before."""
        if changed == "data":
            self._levels, self._still = Levels(), None
        if changed == "rate":
            self._peak_rate = 0.0  # lowered by a decision: nothing has decayed
        self._peak_rate = max(self._peak_rate, record.learning_rate)
        if record.step == 1:
            self._first_loss = record.loss
        if record.warmup:
            self._warm_from = record.step
        if not math.isfinite(record.loss) or not self._levels.push(record.step, record.loss):
            return None
        if not self._is_judged(record):
            self._still = None
            return HEALTHY
        now = self._levels.before(record.step + 1)
        if self._still is not None and now > self._still.level - self._still.least_fall:
            return (self._sign(record, now, self._still),)
        lasting = (self._fell_before(record, now, *stretch) for stretch in _STRETCHES)
        self._still = (
            self._never_moved(record, now)
            or next((still for still in lasting if still is not None), None)
            or self._rests_since_start(record, now)
        )
        return HEALTHY if self._still is None else (self._sign(record, now, self._still),)

    def _is_judged(self, record: StepRecord) -> bool:
        if record.warmup or record.step - self._warm_from < self._limits.least_steps:
            return False
        if record.step - self._levels.begin < self._limits.least_steps:
            return False
        if record.learning_rate < self._limits.decayed_share * self._peak_rate:
            return False
        return self._total_steps is None or record.step < _END_SHARE * self._total_steps

    def _never_moved(self, record: StepRecord, now: float) -> _Still | None:
        start = self._first_loss
        least_fall = max(self._limits.least_fall, self._limits.least_share * start)
        if self._levels.begin > 1 or not abs(start - now) < least_fall:
            return None
        return _Still(record, now, least_fall, f"it was {start:.3f} at the first step")

    def _rests_since_start(self, record: StepRecord, now: float) -> _Still | None:
        """All that a young run has learned, it learned in its first steps."""
        if self._levels.begin > 1 or record.step > _YOUNG * self._limits.least_steps:
            return None
        before, until = self._first_loss - now, _FIRST_SHARE * record.step
        lately = self._levels.before(until) - now
        return self._rests(record, now, before, lately, _FIRST_FALL, (before - lately, until))

    def _fell_before(
        self, record: StepRecord, now: float, begin: float, middle: float, share: float
    ) -> _Still | None:
        """Whether the loss fell from the age of `begin` to that of `middle`, and not since."""
        end = record.step + 1
        first = max(begin * end, self._levels.begin)
        half = first + (end - first) * (middle - begin) / (1 - begin)
        early = self._levels.between(first, first + (half - first) / 4 + 1)
        middle_level = self._levels.before(half)
        before, lately = early - middle_level, middle_level - now
        return self._rests(record, now, before, lately, share, (before, half))

    def _rests(
        self,
        record: StepRecord,
        now: float,
        before: float,
        lately: float,
        share: float,
        fell: tuple[float, float],
    ) -> _Still | None:
        """Whether it `fell` so many nats up to a step, and too little of `before` lately."""
        trusted = max(self._limits.least_fall, _DEVIATIONS * self._levels.noise)
        least_fall = share * self._limits.progress_share * before
        if not before >= trusted or not -trusted < lately < least_fall:
            return None
        why = f"it fell by {fell[0]:.3f} up to step {fell[1]:.0f}, and by {lately:.3f} after that"
        return _Still(record, now, least_fall, why)

    def _sign(self, record: StepRecord, now: float, still: _Still) -> Sign:
        since = still.since.step
        severity: Severity = "warning" if record.step >= (1 + _LASTS_SHARE) * since else "notice"
        sentence = (
            f"The loss stands still at {now:.3f} nats: {still.why}. The learning rate may be too "
            f"low or too high, or something wrong with the data."
        )
        evidence = {"level": now, "least_fall": still.least_fall}
        return Sign("plateau", severity, still.since, sentence, evidence=evidence)


_RATIO = "update_ratio.matrix"
_LEAST_STEPS = 100
_NEAR_PEAK = 0.5


class SlowProgress(Detector):
    """Judges gauge steps after warm-up.

    Updates are too small if they are far below what is usual while the rate stands near its own
    peak, or far below their own size before the rate was lowered at once (schedules lower it
    gradually). Either counts only if the loss hardly falls; a model that is still about where it
    began is held to stricter bounds, as its loss should fall steeply.
    """

    def __init__(self, limits: SlowProgressLimits) -> None:
        self._limits = limits
        self._levels = Levels()
        self._ratios = Window(limits.readings)
        self._before_change = math.nan
        self._lowered: StepRecord | None = None
        self._rate = self._peak_rate = 0.0
        self._first: StepRecord | None = None
        self._warm_from = 0

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Hold the size of updates against what is usual and what was usual here."""
        if changed == "data":
            self._levels = Levels()
        if changed == "rate":
            if record.learning_rate >= self._rate:
                self._lowered = None
            elif self._lowered is None:
                self._before_change, self._lowered = self._ratios.median, record
            self._ratios.clear()
        self._rate = record.learning_rate
        self._peak_rate = max(self._peak_rate, record.learning_rate)
        if math.isfinite(record.loss):
            self._levels.push(record.step, record.loss)
        if record.warmup:
            self._warm_from = record.step
        ratio = record.totals.get(_RATIO, math.nan)
        if not math.isfinite(ratio) or record.masked:
            return None
        self._ratios.push(ratio)
        if record.warmup or record.step < _LEAST_STEPS or len(self._ratios) < self._limits.readings:
            return None
        return self._judge(record, self._ratios.median)

    def _judge(self, record: StepRecord, ratio: float) -> Signs:
        limits = self._limits
        near_peak = record.learning_rate >= _NEAR_PEAK * self._peak_rate
        lowered = self._lowered is not None and ratio < limits.history_share * self._before_change
        young = self._is_young(record) and ratio < limits.young_update_ratio
        if not lowered and not (near_peak and (young or ratio < limits.update_ratio)):
            self._first = None
            return HEALTHY
        self._first = self._first or (self._lowered if lowered else None) or record
        fall = self._fall(record.step + 1, self._lowered.step if lowered and self._lowered else 0)
        if not young and (math.isnan(fall) or fall > limits.least_fall):
            return HEALTHY
        if young:
            fall = self._levels.first - self._levels.last
        usual = self._before_change if lowered else 1e-3
        evidence = {"update_ratio": ratio, "usual": usual, "fall": fall}
        sentence = (
            f"An update changes the weights by {ratio:.2g} of their size, where {usual:.2g} "
            f"{'was' if lowered else 'is'} usual, and the loss hardly falls ({fall:.3f} nats): "
            f"the learning rate of {record.learning_rate:.3g} may be too low."
        )
        return (Sign("slow-progress", "warning", self._first, sentence, evidence=evidence),)

    def _is_young(self, record: StepRecord) -> bool:
        """The loss is still about that of the first steps, late enough to be elsewhere."""
        levels, limits = self._levels, self._limits
        if levels.begin > 1 or record.step - self._warm_from < limits.young_steps:
            return False
        return levels.last > (1 - limits.young_fall) * levels.first

    def _fall(self, end: int, lowered_at: int) -> float:
        """Fall of the loss in the last fifth of the run's age, or since the rate was lowered."""
        begin = max(0.8 * end, lowered_at)
        if end - begin < 32:
            return math.nan
        quarter, between = (end - begin) / 4, self._levels.between
        return between(begin, begin + quarter) - between(end - quarter, end)


class FrozenGroup(Detector):
    """Counts still readings of each role."""

    def __init__(self, limits: FrozenGroupLimits) -> None:
        self._limits = limits
        self._still: dict[str, list[StepRecord]] = {}

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Masked steps and a rate of zero update nothing, and say nothing."""
        if not record.totals or record.masked or record.learning_rate <= 0:
            return None
        limits, signs = self._limits, []
        still = {"update_ratio": limits.update_ratio, "gradient_norm": limits.gradient_norm}
        for gauge, value in record.totals.items():
            kind, _, role = gauge.partition(".")
            if not role or kind not in still:
                continue
            records = self._still.setdefault(gauge, [])
            if not value <= still[kind]:
                records.clear()
                continue
            if len(records) < limits.readings:
                records.append(record)
            if len(records) == limits.readings:
                signs.append(_sign(kind, role, value, records[0]))
        # Without a gradient there is no update either: told once.
        return tuple({sign.subject: sign for sign in signs}.values()) or HEALTHY


def _sign(kind: str, role: str, value: float, first: StepRecord) -> Sign:
    if kind == "gradient_norm":
        sentence = f"No gradient reaches the weights of role {role} since step {first.step}."
    else:
        sentence = (
            f"The weights of role {role} do not train: an update changes them by {value:.2g} of "
            f"their size since step {first.step}, where 1e-3 is usual."
        )
    return Sign("frozen-group", "warning", first, sentence, role, {kind: value})
