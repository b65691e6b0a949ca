"""What the policy does where nothing is to be done.

Enters: ends of cases; the lab's stored traces. Leaves: healthy steps and the actions in them.
Never knows: how runs end.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.divergence_lab import lab, runs
from benchmarks.divergence_lab.drive import recipe_of
from benchmarks.divergence_lab.ends.cases import case, healthy
from benchmarks.divergence_lab.ends.drive import Action
from benchmarks.divergence_lab.ends.make import Ends

from longhaul.recover.backtest import replay


@dataclass(frozen=True, slots=True)
class Calm:
    """Steps in which nothing was to be done, and what was done in them."""

    steps: int
    actions: int

    @property
    def per_10_000(self) -> float:
        """Needless actions."""
        return 10_000 * self.actions / self.steps if self.steps else math.nan

    def __add__(self, other: "Calm") -> "Calm":
        return Calm(self.steps + other.steps, self.actions + other.actions)


def calm(ends: Ends) -> Calm:
    """Of runs through the real loop: those without a fault, and before the onset in the others."""
    steps = actions = 0
    for name, forms in ends.items():
        if "policy" not in forms:
            continue
        way, number = name.split("/")
        run = forms["policy"]
        if way == "healthy":
            assert healthy(int(number)).change is None
            steps, actions = steps + run.made, actions + len(run.actions)
        else:
            onset = case(way, int(number)).onset
            steps += min(run.made, onset - 1)
            actions += sum(1 for _ in _before(run.actions, onset))
    return Calm(steps, actions)


def _before(actions: Iterable[Action], onset: int) -> Iterable[Action]:
    """Actions before anything was wrong: after a rollback step counts are low once more."""
    for action in actions:
        if action.step >= onset:
            return
        yield action


def calm_on_traces() -> Calm:
    """Of the lab's healthy runs, judged again from their stored traces: detectors and policy are
    the real ones, nothing is trained. A run counts up to the first thing that would have been done.
    """
    declared = {run.name: run for run in runs.catalogue()}
    names = [name for name in lab.stored_names() if name.startswith("healthy/")]
    found = Calm(0, 0)
    for made in lab.stored(names):
        if not made.truth.healthy:
            continue
        turns = replay(made.trace, recipe_of(declared[made.name])).turns
        acted = [t.step for t in turns if t.would is not None and (t.would.effects or t.would.stop)]
        found += Calm(acted[0] if acted else len(made.steps), len(acted[:1]))
    return found
