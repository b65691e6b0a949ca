"""Findings against the truth.

Enters: made runs, each with the findings of a replay. Leaves: recall, precision, false alarms and
lead times, each with a 95 % interval. Never knows: how findings come about.

What counts:
    alarm: a finding of severity `warning` or `alarm`; a notice is none.
    true alarm: it lies at or after the onset of the cause of a run that was harmed.
    in time: not later than 50 steps after the loss left its band; where the harm is that nothing
        happens (stalled, frozen, too good), until the end of the run.
    recall: share of harmed runs with a true alarm in time, of any kind.
    recall of kind: the same with a kind that `causes.py` accepts for the mechanism; for runs that
        came to harm without a cause, any kind of harm.
    false alarm: an alarm in a healthy step. Healthy are all steps of runs without a cause that
        stayed in their band, and the steps before the onset of the others. Runs with a cause that
        stayed in their band are neither: alarms in them are told apart.
    precision: true alarms over true and false ones, each finding counted; of a kind, true are only
        those of an accepted kind, and those of other kinds in harmed runs count against it.
    lead: the step at which the loss left its band, minus the step of the first true alarm; a
        harmed run that was missed counts with −50, one whose loss stayed in its band (frozen) not
        at all.
Intervals: Wilson's for shares, exact Poisson (Garwood) for rates, bootstrap over runs for medians.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.divergence_lab.causes import ANY_HARM, CAUSES
from benchmarks.divergence_lab.generate import Made

from longhaul.core.records import Finding

LATE_STEPS = 50
_WITHOUT_EVENT = ("stalled", "frozen", "too-good")
_Z95 = 1.959964
NAMED_BY = {
    "growth": lambda m: _slow(m),
    "divergence": lambda m: m.truth.outcome == "diverged",
    "loss-spike": lambda m: m.truth.outcome == "spiked",
    "non-finite": lambda m: m.truth.outcome == "non-finite",
    "loss-scale-collapse": lambda m: m.mechanism == "float16-range",
    "plateau or slow-progress": lambda m: m.truth.outcome == "stalled",
    "frozen-group": lambda m: m.truth.outcome == "frozen",
    "too-good": lambda m: m.truth.outcome == "too-good",
}
"""Detector → the harmed runs that are its own to find; `gradient-spike` has none of its own."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A made run and what was found in it."""

    made: Made
    findings: tuple[Finding, ...]

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """Findings that are more than a notice."""
        return tuple(f for f in self.findings if f.severity != "notice")

    def true_alarms(self) -> tuple[Finding, ...]:
        """Those that came when harm was under way or done."""
        truth = self.made.truth
        return tuple(f for f in self.alarms if truth.harmed and f.step >= truth.onset)

    def false_alarms(self) -> tuple[Finding, ...]:
        """Those in healthy steps."""
        return tuple(f for f in self.alarms if f.step <= self.healthy_steps)

    @property
    def healthy_steps(self) -> int:
        """First steps of the run that are healthy."""
        truth = self.made.truth
        if self.made.mechanism == "healthy":
            return len(self.made.steps) if truth.healthy else 0
        return 0 if truth.outcome == "doubtful" else truth.onset - 1

    @property
    def accepted(self) -> tuple[str, ...]:
        """Kinds that name what is wrong."""
        cause = CAUSES.get(self.made.mechanism)
        return cause.accepted if cause is not None else ANY_HARM

    def found(self, kinds: Iterable[str] | None = None) -> Finding | None:
        """The first true alarm in time, of these kinds or of any."""
        truth = self.made.truth
        late = truth.left_band is None or truth.outcome in _WITHOUT_EVENT
        deadline = math.inf if late else (truth.left_band or 0) + LATE_STEPS
        for finding in self.true_alarms():
            if finding.step <= deadline and (kinds is None or finding.kind in kinds):
                return finding
        return None

    def lead(self) -> int | None:
        """Steps from the first true alarm to the loss leaving its band; None if it never did."""
        finding, left = self.found(), self.made.truth.left_band
        if not self.made.truth.harmed or left is None:
            return None
        return -LATE_STEPS if finding is None else left - finding.step


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval, and the count it rests on."""

    value: float
    low: float
    high: float
    of: int

    def __format__(self, spec: str) -> str:
        if not self.of:
            return "–"
        shown = (format(x, spec) for x in (self.value, self.low, self.high))
        return "{} ({} to {})".format(*shown)


@dataclass(frozen=True, slots=True)
class Score:
    """All figures of a set of runs."""

    harmed: int
    healthy_runs: int
    healthy_steps: int
    recall: Interval
    recall_of_kind: Interval
    precision: Interval
    false_alarms: Interval
    """Per 10,000 healthy steps."""
    lead: Interval
    """Median, in steps."""
    lead_share: Interval
    """Median, as a share of the run."""


def score(judged: Sequence[Judged]) -> Score:
    """The figures of a set of runs."""
    harmed = [j for j in judged if j.made.truth.harmed]
    true = sum(len(j.true_alarms()) for j in harmed)
    false = sum(len(j.false_alarms()) for j in judged)
    steps = sum(j.healthy_steps for j in judged)
    return Score(
        harmed=len(harmed),
        healthy_runs=sum(j.made.mechanism == "healthy" and j.made.truth.healthy for j in judged),
        healthy_steps=steps,
        recall=wilson(sum(j.found() is not None for j in harmed), len(harmed)),
        recall_of_kind=wilson(sum(j.found(j.accepted) is not None for j in harmed), len(harmed)),
        precision=wilson(true, true + false),
        false_alarms=rate(false, steps),
        lead=lead_of(harmed),
        lead_share=lead_of(harmed, as_share=True),
    )


def lead_of(judged: Sequence[Judged], as_share: bool = False) -> Interval:
    """The median lead, in steps or as a share of each run."""
    leads = [(lead, len(j.made.steps)) for j in judged if (lead := j.lead()) is not None]
    return median([lead / steps if as_share else float(lead) for lead, steps in leads])


@dataclass(frozen=True, slots=True)
class DetectorScore:
    """Figures of one detector."""

    alarms: int
    recall: Interval
    """Of the runs that are its own to find."""
    precision: Interval
    false_alarms: Interval


def detector_scores(judged: Sequence[Judged]) -> dict[str, DetectorScore]:
    """By kind of finding, those first that have runs of their own."""
    told = sorted({f.kind for j in judged for f in j.alarms})
    names = [*NAMED_BY, *(k for k in told if not any(k in n.split(" or ") for n in NAMED_BY))]
    return {name: _detector_score(name, judged) for name in names}


def _detector_score(name: str, judged: Sequence[Judged]) -> DetectorScore:
    kinds = name.split(" or ")
    is_own: Callable[[Made], bool] = NAMED_BY.get(name, lambda m: False)
    own = [j for j in judged if j.made.truth.harmed and is_own(j.made)]
    true = other = false = 0
    for j in judged:
        mine = [f for f in j.true_alarms() if f.kind in kinds]
        right = [f for f in mine if f.kind in j.accepted]
        true, other = true + len(right), other + len(mine) - len(right)
        false += sum(f.kind in kinds for f in j.false_alarms())
    return DetectorScore(
        alarms=true + other + false,
        recall=wilson(sum(j.found(kinds) is not None for j in own), len(own)),
        precision=wilson(true, true + other + false),
        false_alarms=rate(false, sum(j.healthy_steps for j in judged)),
    )


def _slow(made: Made) -> bool:
    cause = CAUSES.get(made.mechanism)
    return cause is not None and cause.slow


def slow_kinds(judged: Sequence[Judged]) -> list[Judged]:
    """Harmed runs whose cause grew step by step."""
    return [j for j in judged if j.made.truth.harmed and _slow(j.made)]


def wilson(successes: int, of: int) -> Interval:
    """A share with Wilson's interval (1927)."""
    if not of:
        return Interval(math.nan, math.nan, math.nan, 0)
    share, z2 = successes / of, _Z95**2
    centre = (share + z2 / (2 * of)) / (1 + z2 / of)
    spread = _Z95 / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return Interval(share, max(0.0, centre - spread), min(1.0, centre + spread), of)


def rate(events: int, steps: int) -> Interval:
    """Events per 10,000 steps with the exact interval of a Poisson count (Garwood, 1936)."""
    if not steps:
        return Interval(math.nan, math.nan, math.nan, 0)
    per = 10_000 / steps
    low = _poisson_mean(lambda mean: _at_most(events - 1, mean), 0.975) if events else 0.0
    high = _poisson_mean(lambda mean: _at_most(events, mean), 0.025)
    return Interval(events * per, low * per, high * per, steps)


def median(values: Sequence[float]) -> Interval:
    """The median with a bootstrap interval, from 2,000 samples of the runs."""
    if not values:
        return Interval(math.nan, math.nan, math.nan, 0)
    generator = random.Random(0)
    samples = sorted(
        statistics.median(generator.choices(values, k=len(values))) for _ in range(2000)
    )
    return Interval(statistics.median(values), samples[49], samples[1949], len(values))


def _at_most(events: int, mean: float) -> float:
    """Probability of at most so many events."""
    return sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(events + 1))


def _poisson_mean(probability: Callable[[float], float], wanted: float) -> float:
    """The mean at which a falling probability has the value wanted."""
    low, high = 1e-9, 1e5
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if probability(middle) > wanted else (low, middle)
    return low
