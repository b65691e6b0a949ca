"""What a scaling ladder trains next, decided from the results so far. Pure.

Learning rates lie on a grid of factor two around the recipe's. At each size the search goes on
until the best rate has a worse one on both sides and the lowest rate that diverges is known.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from longhaul.core.errors import NeedsPerson
from longhaul.core.units import Nats
from longhaul.plan.ladder.fit import lowest_point, power_law

REACH = 12
"""Doublings from the recipe's rate, up and down, after which the search gives up."""
_LEARNED = 0.5
"""Share of the best rate's fall of the loss; a higher rate with less has diverged."""
RATES_EXPECTED = 7
"""Rates tried at a size, for the estimate of the cost; from 4 to 9 as a rule."""


@dataclass(frozen=True, slots=True)
class Idea:
    """Something the recipe does that may or may not pay at a larger size."""

    name: str
    without: tuple[str, ...]
    """`path=value` of the recipe without it."""


@dataclass(frozen=True, slots=True)
class LadderRun:
    """One run of a ladder."""

    size: int
    """Its position among the sizes."""
    rate: float
    seed: int
    without: str = ""
    """Name of the idea that is switched off."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run."""

    loss: Nats
    """Validation loss at its end."""
    untrained: Nats
    """Training loss of its first step."""
    worst: Nats
    """Highest mean training loss over a tenth of its steps, the first tenth left out."""
    finite: bool
    """Every loss was a number, and every update was made."""


@dataclass(frozen=True, slots=True)
class LadderPlan:
    """What a ladder is to find out."""

    parameters: tuple[int, ...]
    """Of each size, rising; the last one is predicted."""
    rate: float
    """The recipe's learning rate."""
    seeds: tuple[int, ...]
    ideas: tuple[Idea, ...]

    def rate_at(self, doublings: int) -> float:
        """A rate of the grid, to four digits."""
        return float(f"{self.rate * 2.0**doublings:.4g}")


Results = Mapping[LadderRun, Outcome]


def diverged(outcome: Outcome, best: Outcome | None = None) -> bool:
    """Whether training broke: a loss or an update was not finite, or a tenth of the steps was worse
    than the untrained model, or it ended with less than half of what the `best` rate has learned.
    """
    if not (outcome.finite and math.isfinite(outcome.loss)) or outcome.worst > outcome.untrained:
        return True
    if best is None:
        return False
    return outcome.untrained - outcome.loss < _LEARNED * (best.untrained - best.loss)


@dataclass(frozen=True, slots=True)
class RateSearch:
    """What is known of the learning rates of one size, as doublings of the recipe's."""

    best: int | None = None
    """Of the rates tried."""
    diverging: int | None = None
    """The lowest that diverges above the best."""
    following: int | None = None
    """The rate to try next; None: the search is over."""


def search_rates(
    tried: Mapping[int, Outcome], start: int = 0, hint: int | None = None
) -> RateSearch:
    """The next rate to try at one size, from those that were. `start` is the first; `hint` is the
    rate that diverged at the size before, tried before the steps up to it.
    """
    if not tried:
        return RateSearch(following=start)
    sound = {doublings: out.loss for doublings, out in tried.items() if not diverged(out)}
    if not sound:
        return RateSearch(diverging=min(tried), following=_within(min(tried) - 1))
    best = min(sound, key=lambda doublings: sound[doublings])
    broken = [d for d, out in tried.items() if d > best and diverged(out, tried[best])]
    diverging = min(broken, default=None)
    if diverging is None:
        highest = max(tried)
        beyond = hint if hint is not None and hint > highest else highest + 1
    else:
        beyond = diverging - 1
    following = next((d for d in (best - 1, best + 1, beyond) if d not in tried), None)
    return RateSearch(best, diverging, _within(following))


def _within(doublings: int | None) -> int | None:
    return doublings if doublings is not None and abs(doublings) <= REACH else None


def tried_rates(plan: LadderPlan, results: Results, size: int) -> dict[int, Outcome]:
    """Doublings → outcome, of the first seed at one size."""
    runs = {d: LadderRun(size, plan.rate_at(d), plan.seeds[0]) for d in range(-REACH, REACH + 1)}
    return {doublings: results[run] for doublings, run in runs.items() if run in results}


def rate_searches(plan: LadderPlan, results: Results) -> list[RateSearch]:
    """The searches of all sizes but the last, up to one not over; NeedsPerson if one finds none."""
    made: list[RateSearch] = []
    for size in range(len(plan.parameters) - 1):
        start = (made[-1].best or 0) if made else 0
        hint = made[-1].diverging if made else None
        search = search_rates(tried_rates(plan, results, size), start, hint)
        if search.best is None and search.following is None:
            raise NeedsPerson(
                f"at {plan.parameters[size]:,} parameters every learning rate from "
                f"{plan.rate_at(-REACH):g} to {plan.rate_at(start):g} diverges",
                "look at the recipe at that size: `longhaul train` with `longhaul diagnose`",
            )
        made.append(search)
        if search.following is not None:
            break
    return made


def best_rate(plan: LadderPlan, results: Results, size: int, search: RateSearch) -> float:
    """The lowest point of a parabola in the logarithm of the rate, through the best rate tried and
    its neighbours; the best rate tried where a neighbour diverged or is absent. Four digits.
    """
    tried, best = tried_rates(plan, results, size), search.best
    assert best is not None
    around = [tried.get(best + offset) for offset in (-1, 0, 1)]
    losses = [out.loss for out in around if out is not None and not diverged(out, tried[best])]
    if len(losses) < 3:
        return plan.rate_at(best)
    lowest = lowest_point(losses[0], losses[1], losses[2])
    return float(f"{plan.rate * 2.0 ** (best + lowest):.4g}")


def best_rates(plan: LadderPlan, results: Results) -> list[float]:
    """Of each size as far as known; that of the last by a power law in the parameters."""
    searches = rate_searches(plan, results)
    over = [search for search in searches if search.following is None]
    rates = [best_rate(plan, results, size, search) for size, search in enumerate(over)]
    if len(rates) == len(plan.parameters) - 1:
        predicted = power_law(plan.parameters[:-1], rates, plan.parameters[-1])
        rates.append(float(f"{predicted:.4g}"))
    return rates


def next_run(plan: LadderPlan, results: Results) -> LadderRun | None:
    """The run to make next; None when there is nothing left to find out.

    Size after size the search for its rate, and the whole recipe at that rate with every seed; the
    last size has no search, as it is its predicted rate that is tried. Then idea after idea.
    """
    rates = best_rates(plan, results)
    known = [LadderRun(size, rate, seed) for size, rate in enumerate(rates) for seed in plan.seeds]
    if len(rates) == len(plan.parameters):
        names = [idea.name for idea in plan.ideas]
        known += [replace(run, without=name) for name in names for run in known]
    for run in known:
        if run not in results:
            return run
    searches = rate_searches(plan, results)
    following = searches[-1].following
    if following is None:
        return None
    return LadderRun(len(searches) - 1, plan.rate_at(following), plan.seeds[0])
