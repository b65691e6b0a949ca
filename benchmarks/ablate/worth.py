"""What an idea is worth, from the losses of runs with it and without.

The difference of losses over seeds has a paired t-test, and counts where p < 0.01. Where it does,
the whole recipe's own runs of other lengths say at which share of its length it is only as good as
the run without the idea: tokens are one over that share, seconds are tokens times what a step
takes.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.ablate.ideas import Settings, Study
from benchmarks.ablate.training import Results, Run
from benchmarks.common import Bar, figure, missing

SHARES = (0.85, 0.7, 0.5, 0.35, 0.25)
"""Of the whole recipe's length, at which it is trained too."""
# Student's t, two-sided 99 %, by degrees of freedom: where p < 0.01 begins.
_T99 = [math.inf, 63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17]
Curve = list[tuple[float, float]]
"""(share of the whole recipe's length, nats that its loss is higher there), from 1 downwards."""


@dataclass(frozen=True)
class Worth:
    """What an idea is worth, or costs."""

    loss: float
    """Nats that the loss is higher with the settings, at the same length."""
    t: float
    """Of the paired test over seeds."""
    degrees: int
    pace: float
    """Seconds of a step with the settings over those of the whole recipe."""
    share: float | None
    """Of its length, at which the whole recipe has their loss; None: below all that were tried."""

    @property
    def is_shown(self) -> bool:
        """P < 0.01."""
        return abs(self.t) > _T99[min(self.degrees, len(_T99) - 1)]

    @property
    def is_winner(self) -> bool:
        """It is shown that the recipe is worse with the settings."""
        return self.is_shown and self.loss > 0

    @property
    def tokens(self) -> float | None:
        """Needed with the settings, over those that the whole recipe needs for the same loss."""
        return 1 / self.share if self.share is not None and self.is_winner else None

    @property
    def seconds(self) -> float | None:
        """The same of training."""
        return None if self.tokens is None else self.tokens * self.pace


@dataclass(frozen=True)
class Findings:
    """Of one recipe."""

    loss: float
    """The whole recipe's, the mean over seeds."""
    seconds: float
    """Of its steps, the median over seeds."""
    seeds: int
    without: dict[str, Worth]
    added: dict[str, Worth]


def findings(study: Study, results: Results, steps: int) -> Findings | None:
    """What the runs so far say: of each idea that has two seeds at least; None if the whole recipe
    has not.
    """
    whole = results.of((), steps)
    if len(whole) < 2:
        return None
    lengths = {share: max(1, round(steps * share)) for share in (1.0, *SHARES)}
    curve = curve_of({share: results.of((), length) for share, length in lengths.items()})

    def of(ideas: Mapping[str, Settings]) -> dict[str, Worth]:
        made = {idea: results.of(settings, steps) for idea, settings in ideas.items()}
        return {
            idea: worth(whole, runs, curve, results.paces.get(ideas[idea]))
            for idea, runs in made.items()
            if len(runs.keys() & whole.keys()) > 1
        }

    return Findings(
        statistics.fmean(run.loss for run in whole.values()),
        statistics.median(run.seconds for run in whole.values()),
        len(whole), of(study.without), of(study.added),
    )  # fmt: skip


def worth(
    whole: Mapping[int, Run], made: Mapping[int, Run], curve: Curve, paces: Sequence[float] | None
) -> Worth:
    """From runs of the same seeds; without `paces` a step takes what it took in these."""
    both = [(run, whole[seed]) for seed, run in made.items() if seed in whole]
    more = [own.loss - other.loss for own, other in both]
    loss, spread = statistics.fmean(more), statistics.stdev(more) / math.sqrt(len(more))
    t = loss / spread if spread else math.copysign(math.inf, loss) if loss else 0.0
    ratios = paces or [own.step_s / other.step_s for own, other in both]
    return Worth(loss, t, len(more) - 1, statistics.median(ratios), share_at(curve, loss))


def curve_of(runs: Mapping[float, Mapping[int, Run]]) -> Curve:
    """From runs by share and seed, each against the whole length of its seed."""
    curve = []
    for share, by_seed in runs.items():
        at_full = runs[1.0]
        more = [run.loss - at_full[seed].loss for seed, run in by_seed.items() if seed in at_full]
        if more:
            curve.append((share, statistics.fmean(more)))
    return curve


def share_at(curve: Curve, loss: float) -> float | None:
    """The longest share with so much more loss, by the logarithm of the share between two."""
    before, less = 1.0, 0.0
    if loss <= 0:
        return 1.0
    for share, more in curve:
        if more >= loss > less:
            return float(before * (share / before) ** ((loss - less) / (more - less)))
        before, less = share, more
    return None


def rows(found: Findings, price: float) -> list[Bar]:
    """Every figure."""
    told = [
        figure("whole recipe: loss", found.loss, "nats", f"{found.seeds} seeds"),
        figure("whole recipe: seconds of training", found.seconds, "s"),
    ]
    for idea, one in found.without.items():
        verdict = "p < 0.01" if one.is_shown else "not shown (p ≥ 0.01)"
        told.append(
            figure(f"{idea}: loss without it", one.loss, "nats", f"{verdict}, t {one.t:.1f}")
        )
        told.append(figure(f"{idea}: seconds of a step without it", one.pace, "×"))
        if one.tokens is None or one.seconds is None:
            why = f"more than {1 / SHARES[-1]:g} times as many" if one.is_winner else verdict
            told.append(missing(f"{idea}: tokens", why))
            continue
        saved = (one.seconds - 1) * found.seconds
        told.append(figure(f"{idea}: tokens", one.tokens, "×"))
        told.append(figure(f"{idea}: seconds of training", one.seconds, "×", f"{saved:+.2f} s"))
        told.append(figure(f"{idea}: dollars", saved / 3600 * price, "$"))
    for idea, one in found.added.items():
        told.append(figure(f"with {idea}: more loss", one.loss, "nats", f"t {one.t:.1f}"))
        told.append(figure(f"with {idea}: seconds of a step", one.pace, "×"))
    return told


def table(found: Findings, price: float) -> str:
    """Markdown: what costs most where it is missing first; then what helps most where it is not."""
    lines = [
        "| without | loss | p < 0.01 | seconds of a step | tokens to the same loss | seconds "
        "| dollars a 1,000 runs |",
        "|---|---|---|---|---|---|---|",
    ]
    for idea, one in sorted(
        found.without.items(), key=lambda item: (not item[1].is_winner, -item[1].loss)
    ):
        cells = [f"over {1 / SHARES[-1]:g} ×" if one.is_winner else "–", "–", "–"]
        if one.tokens is not None and one.seconds is not None:
            dollars = (one.seconds - 1) * found.seconds / 3600 * price * 1000
            cells = [f"{one.tokens:.2f} ×", f"{one.seconds:.2f} ×", f"{dollars:+.2f}"]
        lines.append(f"| {idea} | {' | '.join([*_cells(one), *cells])} |")
    lines += ["", "| with, which the recipe does without | loss | p < 0.01 | seconds of a step |"]
    lines += ["|---|---|---|---|"]
    for idea, one in sorted(found.added.items(), key=lambda item: item[1].loss):
        lines.append(f"| {idea} | {' | '.join(_cells(one))} |")
    return "\n".join(lines)


def _cells(one: Worth) -> list[str]:
    return [f"{one.loss:+.4f}", "yes" if one.is_shown else "no", f"{one.pace:.2f} ×"]
