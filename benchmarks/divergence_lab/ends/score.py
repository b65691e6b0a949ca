"""Ends compared: what a fault costs with the policy and without.

Enters: ends of cases. Leaves: figures and tables. Never knows: how an end came about.

Definitions:
    end: final loss over the undisturbed twin's. The loss is the mean validation loss over all
        held-back text (about 100 kB), in nats; twins share seed, data and every bit up to the
        fault.
        A run that was stopped for a person, or whose loss is not finite, has no end: it counts as
        infinite in medians.
    recovered: the policy changed something (`accept` changes how losses are judged, and nothing
        else), and the run came to its end.
    text that changes for good: no action can bring such a run to the end of a twin that goes on
        with the old text. It counts against every bar but those of the median and of recovered
        runs; what it must not be is worse than with nobody acting.
    worse: with the policy the end is more than 1.02 times what it is with nobody acting. Equal runs
        are equal to the bit, so that this is not for noise; it is what any other order of the same
        data, or any other seed, might have done to the loss. Stopped for a person counts as
        worse where nobody acting would have ended at 1.10 or below.
    steps again: steps that the policy threw away by going back, as a share of the run's.
    seconds wasted: those steps, replays in search of a cause, and going back, as a share of the
        seconds from the first step to the end.
    action: a decision of the policy that changes something; masks and reports are none.
    needless action: one in a run without a fault, or before the onset of the fault.
    harmed: with nobody acting it ends above 1.05. It is found if there is a warning or an alarm
        from the onset on.
    healthy steps: of runs without a fault, and before the onset in the others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.common import Bar, at_least, at_most, figure
from benchmarks.divergence_lab.ends.calm import calm
from benchmarks.divergence_lab.ends.cases import HELD_OUT_FROM, WAYS, Case, case
from benchmarks.divergence_lab.ends.drive import Ended
from benchmarks.divergence_lab.ends.make import Ends
from benchmarks.divergence_lab.score import rate, wilson

MEDIAN_BAR = 1.02
RECOVERED_BAR = 1.10
NEEDLESS_BAR = 0.2
_TOLERANCE = 1.02
_WELL = 1.10
_HARM = 1.05
Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Compared:
    """One case with something wrong."""

    case: Case
    twin: Ended
    nobody: Ended
    policy: Ended

    @property
    def left(self) -> float:
        """End with nobody acting."""
        return _ratio(self.nobody, self.twin)

    @property
    def end(self) -> float:
        """End with the policy acting."""
        return _ratio(self.policy, self.twin)

    @property
    def stopped(self) -> bool:
        """For a person to look."""
        return self.policy.loss is None

    @property
    def recovered(self) -> bool:
        """The policy changed something, and the run came to its end."""
        acted = any(action.actions != ("accept",) for action in self.policy.actions)
        return acted and not self.stopped

    @property
    def curable(self) -> bool:
        """Its text is not of another kind for good."""
        return _group(self) != "text"

    @property
    def harmed(self) -> bool:
        """With nobody acting."""
        return self.left > _HARM

    @property
    def found(self) -> bool:
        """Detectors see it where nobody acts."""
        return any(step >= self.case.onset for step, _ in self.nobody.alarms)

    @property
    def worse(self) -> bool:
        """With the policy than with nobody acting."""
        return self.left <= _WELL if self.stopped else self.end > _TOLERANCE * self.left

    @property
    def again(self) -> float:
        """Share of steps made again."""
        return self.policy.again / self.policy.total

    @property
    def wasted(self) -> float:
        """Share of seconds wasted."""
        return self.policy.wasted_s / self.policy.seconds if self.policy.seconds else math.nan


def compared(ends: Ends) -> list[Compared]:
    """Every case with something wrong of which all forms are there, in the order of ways."""
    found = []
    for name, forms in ends.items():
        way, number = name.split("/")
        if way in WAYS and len(forms) == 3:
            one = case(way, int(number))
            found.append(Compared(one, forms["undisturbed"], forms["nobody"], forms["policy"]))
    order = list(WAYS)
    return sorted(found, key=lambda c: (order.index(c.case.way), c.case.run.name))


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def table(cases: Sequence[Compared]) -> Rows:
    """One row a way to go wrong, and one for all."""
    rows: Rows = [(
        "way to go wrong", "runs", "nobody: median", "95th", "policy: median", "95th", "worse",
        "stopped", "steps again", "seconds wasted", "actions",
    )]  # fmt: skip
    for name, way in WAYS.items():
        if mine := [c for c in cases if c.case.way == name]:
            rows.append(_row(way.says, mine))
    for group in ("people", "rates", "outside", "text"):
        rows.append(_row(f"in all, {group}", [c for c in cases if _group(c) == group]))
    rows.append(_row("in all", cases))
    return rows


def before_and_after(before: Sequence[Compared], after: Sequence[Compared]) -> Rows:
    """Ends by way to go wrong, of two versions of the policy on the same cases."""
    old = {c.case.run.name: c for c in before}
    rows: Rows = [("way to go wrong", "runs", "nobody", "before", "after", "worst before",
                   "worst after", "worse than nobody")]  # fmt: skip
    both = [c for c in after if c.case.run.name in old]
    for label, mine in [
        *((way.says, [c for c in both if c.case.way == name]) for name, way in WAYS.items()),
        ("in all", both),
    ]:
        if mine:
            then = [old[c.case.run.name] for c in mine]
            rows.append((
                label, str(len(mine)), _shown(median(c.left for c in mine)),
                _shown(median(c.end for c in then)), _shown(median(c.end for c in mine)),
                _shown(max(c.end for c in then)), _shown(max(c.end for c in mine)),
                f"{sum(c.worse for c in then)} → {sum(c.worse for c in mine)}",
            ))  # fmt: skip
    return rows


def _group(one: Compared) -> str:
    return WAYS[one.case.way].group


def _row(label: str, mine: Sequence[Compared]) -> tuple[str, ...]:
    if not mine:
        return (label, "0", *["–"] * 9)

    def both(of: Callable[[Compared], float]) -> tuple[str, str]:
        values = [of(one) for one in mine]
        return _shown(median(values)), _shown(percentile(values, 0.95))

    return (
        label, str(len(mine)), *both(lambda c: c.left), *both(lambda c: c.end),
        str(sum(c.worse for c in mine)), str(sum(c.stopped for c in mine)),
        f"{fmean(c.again for c in mine):.0%}", f"{fmean(c.wasted for c in mine):.0%}",
        f"{fmean(len(c.policy.actions) for c in mine):.1f}",
    )  # fmt: skip


def _shown(value: float) -> str:
    return "no end" if math.isinf(value) else f"{value:.3f}"


def _ratio(run: Ended, twin: Ended) -> float:
    if run.loss is None or twin.loss is None or math.isnan(run.loss):
        return math.inf
    return run.loss / twin.loss


def bars(ends: Ends, says: str) -> list[Bar]:
    """The figures that are held against bars.

    Args:
        ends: of one part under one policy.
        says: which, before each figure's name.
    """
    cases, quiet = compared(ends), calm(ends)
    curable = [c for c in cases if c.curable]
    recovered = [c.end for c in curable if c.recovered]
    worse = [c.case.run.name for c in cases if c.worse]
    harmed = [c for c in cases if c.harmed]
    recall = wilson(sum(c.found for c in harmed), len(harmed))
    spread = rate(quiet.actions, quiet.steps)
    held_out = sum(c.case.part == "held-out" for c in cases)
    assert held_out in (0, len(cases)), f"parts are mixed at number {HELD_OUT_FROM}"
    return [
        at_least(f"{says}: runs with a fault", len(cases), "runs", 20),
        _below(f"{says}: median end", median(c.end for c in curable), "× twin", MEDIAN_BAR,
                f"{len(curable)} runs; {_shown(median(c.left for c in curable))} with nobody "
                "acting"),
        _below(f"{says}: 95 % of recovered runs", percentile(recovered, 0.95), "× twin",
                RECOVERED_BAR, f"{len(recovered)} runs, "
                f"{sum(end <= RECOVERED_BAR for end in recovered)} within; 95th percentile of "
                f"all with nobody acting {_shown(percentile([c.left for c in cases], 0.95))}"),
        at_most(f"{says}: runs worse than with nobody acting", len(worse), "runs", 0,
                ", ".join(worse)),
        _below(f"{says}: needless actions per 10,000 healthy steps", quiet.per_10_000, "",
                NEEDLESS_BAR, f"{quiet.actions} in {quiet.steps:,}; 95 % interval "
                f"{spread.low:.2f} to {spread.high:.2f}"),
        figure(f"{says}: recall of detectors, with nobody acting", recall.value, "",
               f"{sum(c.found for c in harmed)} of {len(harmed)} harmed runs; 95 % interval "
               f"{recall.low:.2f} to {recall.high:.2f}"),
        figure(f"{says}: stopped for a person", sum(c.stopped for c in cases), "runs"),
        figure(f"{says}: steps made again", 100 * fmean(c.again for c in cases), "%"),
        figure(f"{says}: seconds wasted", 100 * fmean(c.wasted for c in cases), "%"),
        figure(f"{says}: actions", fmean(len(c.policy.actions) for c in cases), "a run"),
    ]  # fmt: skip


def _below(name: str, value: float, unit: str, bar: float, note: str) -> Bar:
    """A figure against its bar; JSON knows no infinity."""
    if math.isfinite(value):
        return at_most(name, value, unit, bar, note)
    return Bar(name, None, unit, bar, False, f"no end; {note}")
