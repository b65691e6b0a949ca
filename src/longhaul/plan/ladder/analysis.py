"""What the finished runs of a scaling ladder say, as records, as JSON and as Markdown. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from longhaul.core.records import finite_or_word
from longhaul.core.units import Nats, short_count
from longhaul.plan.ladder.fit import Interval, mean95, predict_loss, slope95, trend_in_words
from longhaul.plan.ladder.search import (
    LadderPlan,
    LadderRun,
    Outcome,
    Results,
    best_rates,
    diverged,
    rate_searches,
    tried_rates,
)
from longhaul.plan.ladder.variants import LadderSize


@dataclass(frozen=True, slots=True)
class SizeResult:
    """One size, its search over."""

    size: LadderSize
    rate: float
    """The best one; at the last size as predicted from the others."""
    diverging: float | None
    """The lowest rate tried above the best that diverges; None: none does within reach."""
    tried: dict[float, Outcome]
    """Rate → outcome of the search; empty at the last size."""
    losses: tuple[Nats, ...]
    """Of the whole recipe at the best rate, a value a seed."""

    @property
    def best(self) -> Outcome | None:
        """Of the rates tried."""
        sound = [out for out in self.tried.values() if not diverged(out)]
        return min(sound, key=lambda out: out.loss, default=None)


@dataclass(frozen=True, slots=True)
class Gain:
    """What an idea gains: loss without it minus loss with it, at the same rate and seed."""

    idea: str
    by_size: tuple[tuple[Nats, ...], ...]
    """A value a seed."""
    mean: Interval
    """Over all sizes and seeds."""
    per_doubling: Interval
    """Change of the gain with each doubling of the parameters."""
    verdict: str
    """grows, holds, fades, hurts, not shown, or: diverges without it."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """A finished ladder."""

    sizes: tuple[SizeResult, ...]
    gains: tuple[Gain, ...]
    predicted: Interval | None
    """Mean loss of all seeds at the last size; None where a size has no finite loss."""

    @property
    def measured(self) -> Nats:
        """The same, as trained."""
        return fmean(self.sizes[-1].losses)

    @property
    def came_true(self) -> bool:
        """The measured loss lies inside the predicted interval."""
        return self.predicted is not None and self.predicted.holds(self.measured)


def analyse(plan: LadderPlan, sizes: Sequence[LadderSize], results: Results) -> Analysis:
    """Read off the results of all runs that the plan makes."""
    rates = best_rates(plan, results)
    searches = rate_searches(plan, results)
    found = []
    for number, (size, rate) in enumerate(zip(sizes, rates, strict=True)):
        last = number == len(searches)
        diverging = None if last else searches[number].diverging
        tried = {} if last else tried_rates(plan, results, number)
        found.append(
            SizeResult(
                size,
                rate,
                None if diverging is None else plan.rate_at(diverging),
                {plan.rate_at(doublings): out for doublings, out in sorted(tried.items())},
                tuple(results[LadderRun(number, rate, seed)].loss for seed in plan.seeds),
            )
        )
    gains = tuple(_gain(plan, results, rates, idea.name) for idea in plan.ideas)
    known = [result.losses for result in found[:-1]]
    finite = all(math.isfinite(loss) for losses in known for loss in losses)
    law = (plan.parameters[:-1], known, plan.parameters[-1], len(plan.seeds))
    return Analysis(tuple(found), gains, predict_loss(*law) if finite else None)


def _gain(plan: LadderPlan, results: Results, rates: Sequence[float], idea: str) -> Gain:
    by_size = tuple(
        tuple(
            results[LadderRun(size, rate, seed, idea)].loss
            - results[LadderRun(size, rate, seed)].loss
            for seed in plan.seeds
        )
        for size, rate in enumerate(rates)
    )
    points = [
        (math.log2(parameters), gain)
        for parameters, gains in zip(plan.parameters, by_size, strict=True)
        for gain in gains
    ]
    if all(math.isfinite(gain) for _, gain in points):
        slope = slope95([x for x, _ in points], [gain for _, gain in points])
        mean = mean95([gain for _, gain in points])
    else:
        slope = mean = Interval(math.nan, math.nan, math.nan)
    return Gain(idea, by_size, mean, slope, trend_in_words(slope, mean))


def as_data(analysis: Analysis) -> dict[str, Any]:
    """For `ladder.json`."""
    data = asdict(analysis) | {"measured": analysis.measured, "came_true": analysis.came_true}
    value: dict[str, Any] = finite_or_word(data)
    return value


def as_markdown(analysis: Analysis) -> str:
    """Tables and verdicts."""
    parts = (_sizes(analysis), _rates(analysis), _gains(analysis), _prediction(analysis))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _sizes(analysis: Analysis) -> Iterator[str]:
    yield _row("size", "parameters", "tokens", "best rate", "diverges at", "loss of each seed")
    yield _row(*["---"] * 6)
    for number, result in enumerate(analysis.sizes, 1):
        size, last = result.size, number == len(analysis.sizes)
        losses = ", ".join(f"{loss:.4f}" for loss in result.losses)
        diverging = (
            "" if last else "nowhere" if result.diverging is None else f"{result.diverging:g}"
        )
        rate = f"{result.rate:g}{' (predicted)' if last else ''}"
        counts = short_count(size.parameters), short_count(size.tokens)
        yield _row(size.name, *counts, rate, diverging, losses)


def _rates(analysis: Analysis) -> Iterator[str]:
    rates = sorted({rate for result in analysis.sizes for rate in result.tried})
    yield _row("loss at rate", *(f"{rate:g}" for rate in rates))
    yield _row(*["---"] * (len(rates) + 1))
    for result in analysis.sizes[:-1]:
        cells = []
        for rate in rates:
            out = result.tried.get(rate)
            cell = "" if out is None else f"{out.loss:.3f}"
            cells.append(f"{cell} ✗" if out is not None and diverged(out, result.best) else cell)
        yield _row(result.size.name, *cells)
    yield ""
    yield "✗: it diverges."


def _gains(analysis: Analysis) -> Iterator[str]:
    if not analysis.gains:
        return
    names = [result.size.name for result in analysis.sizes]
    yield _row("gain in nats of", *names, "with each doubling of parameters", "verdict")
    yield _row(*["---"] * (len(names) + 3))
    for gain in analysis.gains:
        means = [f"{fmean(of_size):+.4f}" for of_size in gain.by_size]
        slope = gain.per_doubling
        trend = f"{slope.value:+.4f} ({slope.low:+.4f} to {slope.high:+.4f})"
        yield _row(gain.idea, *means, trend, gain.verdict)


def _prediction(analysis: Analysis) -> Iterator[str]:
    last, predicted = analysis.sizes[-1], analysis.predicted
    if predicted is None:
        yield f"{last.size.name}: no prediction, as a smaller size has no finite loss."
        return
    yield (
        f"{last.size.name}: predicted {predicted.value:.4f} nats (95 % interval "
        f"{predicted.low:.4f} to {predicted.high:.4f}) at rate {last.rate:g}; trained: "
        f"{analysis.measured:.4f}, **{'inside' if analysis.came_true else 'outside'}**."
    )
