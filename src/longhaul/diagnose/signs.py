"""Signs and symptoms: what a detector says about one record, and what is wrong at a step, as
something that a replay either shows or does not.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Literal

from longhaul.core.records import Event, Severity, StepRecord


@dataclass(frozen=True, slots=True)
class Sign:
    """Something is wrong at this record. Signs of one kind and subject make one incident."""

    kind: str
    severity: Severity
    first: StepRecord
    """Where it began, which is before it could be noticed."""
    sentence: str
    subject: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict)


Signs = tuple[Sign, ...] | None
"""None: the record said nothing about what the detector judges, so nothing has ended either."""

Change = Literal["", "data", "rate"]
"""What a step brought that levels may follow: another mixture, batch, sequence length or window
(`data`), or a learning rate changed at once by a decision (`rate`)."""

HEALTHY: tuple[Sign, ...] = ()
"""The detector has judged the record and found nothing."""


class Detector:
    """A fold over the records of one line of training: no step comes twice, none is missing.

    A detector keeps a bounded state and is deterministic. After a rollback it is not asked to
    forget: `Diagnosis` makes a new one, from the records that still hold.
    """

    again: int | None = None
    """Signs after which an alarm that goes on is told again; None: never."""

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Judge one step; with `changed`, other levels are due from here on."""
        raise NotImplementedError

    def evaluated(self, event: Event) -> Signs:
        """Judge one evaluation; most detectors have nothing to say about it."""
        return None


HALF_WAY = 0.5
"""From healthy to what was recorded: less does not show the symptom, nor explain it."""
_CALM = 0.125
"""Of what was recorded: less is left where a learning rate works."""
_MUCH_BETTER = 0.05
"""Share of the loss: lower rates look better over a few steps, as they average out its noise."""

_REFERENCE = 8
"""Steps whose median is a level."""
_FEW = 4
"""The same within a lead, which is short."""
_HISTORY = 256
"""Steps looked back over."""
_SPREADS_OUT = 6.0
"""A loss stands out from so many times its own noise on, and from a least share of itself."""
_LEAST_RISE = 0.02
_LEAST_FACTOR = 3.0
"""A gradient norm stands out from so many times its median on."""
_NOTICED_WITHIN = 5
"""Steps from what stands out to the one that is asked about, at most."""
_SPIKE_STEPS = 3
"""What has lasted longer is a divergence."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one step gave, recorded or replayed."""

    step: int
    loss: float
    gradient_norm: float
    masked: bool = False
    gauges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """Loss and gradient are numbers, and the update was made."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm) and not self.masked


Series = tuple[Figures, ...]
"""Figures of successive steps."""


SymptomKind = Literal["none", "non-finite", "loss-spike", "gradient-spike", "divergence"]


@dataclass(frozen=True, slots=True)
class Symptom:
    """What is wrong, as something that a replay either shows or does not."""

    kind: SymptomKind
    step: int
    """Where it stands out."""
    first_step: int
    """Its first sign."""
    healthy: float = 0.0
    """Loss or gradient norm before it."""
    reached: float = 0.0
    """Loss or gradient norm that was recorded."""

    def __str__(self) -> str:
        if self.kind == "none":
            return f"step {self.step}: nothing stands out against the steps before it"
        text = f"step {self.step}: {self.kind}"
        if self.first_step < self.step:
            text += f", first seen at step {self.first_step}"
        if self.kind != "non-finite":
            what = "gradient norm" if self.kind == "gradient-spike" else "loss"
            text += f": {what} {self.healthy:.4g} before it, up to {self.reached:.4g}"
        return text

    def shown_by(self, series: Sequence[Figures]) -> bool:
        """The figures rise by at least half of what was recorded, from the first sign on.

        Steps before that are the lead: a replay on other data or at a lower rate stands at another
        level by then, and is measured from its own.
        """
        lead = [figures for figures in series if figures.step < self.first_step]
        rest = [figures for figures in series if figures.step >= self.first_step]
        if not rest or self.kind == "none":
            return False
        if not all(figures.finite for figures in series):
            return True
        if self.kind == "non-finite":
            return False
        values = [self.measured(figures) for figures in rest]
        highest = _ending(values) if self.kind == "divergence" else max(values)
        levels = [self.healthy, *_levels([self.measured(figures) for figures in lead])]
        return highest >= max(map(self._risen_from, levels))

    def calm_in(self, series: Sequence[Figures]) -> bool:
        """Hardly anything of it is left: what is not half of it may still harm a run at leisure.

        The loss ends no higher than it was before the first sign, by more than an eighth of what
        was recorded or by what noise does.
        """
        if self.shown_by(series):
            return False
        if self.kind == "gradient-spike":
            return True
        lead = [figures.loss for figures in series if figures.step < self.first_step]
        level = min(_levels(lead) or lead[:1] or [self.ends_at(series)])
        rise = self.reached - self.healthy if self.kind != "non-finite" else 0.0
        return self.ends_at(series) <= level + max(_CALM * rise, _LEAST_RISE * abs(level))

    def ends_at(self, series: Sequence[Figures]) -> float:
        """Loss at the end of some steps, from the first sign on."""
        rest = [figures.loss for figures in series if figures.step >= self.first_step]
        return _ending(rest) if rest and all(map(math.isfinite, rest)) else math.inf

    def measured(self, figures: Figures) -> float:
        """The figure that it shows in."""
        return figures.gradient_norm if self.kind == "gradient-spike" else figures.loss

    def _risen_from(self, level: float) -> float:
        """Half of the rise above a level; gradients grow by factors, losses by sums."""
        if self.kind == "gradient-spike" and self.healthy > 0:
            return float(level * (self.reached / self.healthy) ** HALF_WAY)
        return level + HALF_WAY * (self.reached - self.healthy)


def symptom_of(recorded: Sequence[Figures], step: int) -> Symptom:
    """What stands out at `step`, or a few steps before it: it is noticed late.

    The healthy level is the lowest median of a few steps on the way: a climb must not raise its
    own baseline.
    """
    history = [figures for figures in recorded if figures.step <= step]
    for back in range(_NOTICED_WITHIN):
        symptom = _standing_out(history[-_HISTORY - back : len(history) - back])
        if symptom is not None:
            return symptom
    return Symptom("none", step, step)


def symptom_since(recorded: Sequence[Figures], first_step: int) -> Symptom | None:
    """A divergence whose first sign is known, up to the last step; None without a rise."""
    before = [f.loss for f in recorded if f.step < first_step and f.finite][-_REFERENCE:]
    rest = [f for f in recorded if f.step >= first_step]
    if not before or not rest:
        return None
    if not all(f.finite for f in rest):
        return Symptom("non-finite", rest[-1].step, first_step)
    healthy, reached = statistics.median(before), _ending([f.loss for f in rest])
    if reached <= healthy:
        return None
    return Symptom("divergence", rest[-1].step, first_step, healthy, reached)


def working_rate(symptom: Symptom, tried: Sequence[tuple[float, Series]]) -> float | None:
    """The highest factor on the learning rate that leaves hardly anything of a symptom, and that a
    lower one does not do much better than; None if none does. `tried`: factors, falling, with the
    figures of the same steps at each.
    """
    best: tuple[float, float] | None = None
    for factor, series in tried:
        end = symptom.ends_at(series)
        better = best is not None and end < best[1] * (1 - _MUCH_BETTER)
        if better or (best is None and symptom.calm_in(series)):
            best = factor, end
    return best[0] if best else None


def _standing_out(history: list[Figures]) -> Symptom | None:
    """What stands out at the last of these steps."""
    if not history:
        return None
    step = history[-1].step
    bad = _since(history, lambda figures: not figures.finite)
    if bad is not None:
        return Symptom("non-finite", step, bad)
    finite = [figures for figures in history if figures.finite]
    return _risen(finite, step, "loss-spike") or _risen(finite, step, "gradient-spike")


def _risen(
    history: list[Figures], step: int, kind: Literal["loss-spike", "gradient-spike"]
) -> Symptom | None:
    if len(history) <= _REFERENCE:
        return None
    gradient = kind == "gradient-spike"
    values = [f.gradient_norm if gradient else f.loss for f in history]
    ends = range(_REFERENCE, len(values))
    medians = [statistics.median(values[end - _REFERENCE : end]) for end in ends]
    if gradient:
        healthy = statistics.median(medians)
        limit = healthy * _LEAST_FACTOR
    else:
        healthy = min(medians)
        changes = [abs(b - a) for a, b in pairwise(values)]
        spread = 1.05 * statistics.median(changes)  # of one value, from differences of two
        limit = healthy + max(_SPREADS_OUT * spread, _LEAST_RISE * abs(healthy))
    out = {f.step for f, value in zip(history, values, strict=True) if value > limit}
    first = _since(history, lambda figures: figures.step in out)
    if first is None:
        return None
    reached = max(value for f, value in zip(history, values, strict=True) if f.step >= first)
    lasting = step - first >= _SPIKE_STEPS and not gradient
    return Symptom("divergence" if lasting else kind, step, first, healthy, reached)


def _ending(values: list[float]) -> float:
    """Where a stretch ends: a bump that is overcome is no divergence."""
    return statistics.median(values[-max(1, len(values) // 4) :])


def _levels(values: list[float]) -> list[float]:
    """The lowest median of a few successive values up to the last; none of too few."""
    ends = range(_FEW, len(values) + 1)
    medians = [statistics.median(values[end - _FEW : end]) for end in ends]
    return [min(medians)] if medians else []


def _since(history: Sequence[Figures], bad: Callable[[Figures], bool]) -> int | None:
    """First step of the unbroken stretch of bad ones at the end; None if the last is not bad."""
    stretch = list(takewhile(bad, reversed(history)))
    return stretch[-1].step if stretch else None
