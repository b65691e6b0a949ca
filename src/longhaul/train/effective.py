"""Effective settings: the recipe with the ledger on top, at any step; put in force in the live step
and read back from it, with a swapped optimizer or a reset of state where they ask for one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from longhaul.checkpoint.capture import Stateful
from longhaul.config.load import with_overrides
from longhaul.config.optim import OptimSection
from longhaul.config.recipe import Recipe
from longhaul.core.errors import NeedsPerson
from longhaul.core.events import EventKind
from longhaul.logbook.ledger import LedgerState, Reset
from longhaul.optim.update_rules import OPTIMIZERS, build_optimizer
from longhaul.train.state import Progress, Rewarm, training_state
from longhaul.train.step import TrainingStep


@dataclass(eq=False)
class EffectiveSettings:
    """The settings in force at each step, worked out once per change of the ledger."""

    _recipe: Recipe
    _ledger: LedgerState
    _known: tuple[dict[str, Any], Recipe] | None = None

    def at(self, step: int) -> Recipe:
        """Settings of the update that turns `step` into `step + 1`."""
        overrides = dict(self._ledger.overrides_at(step))
        if self._known is None or self._known[0] != overrides:
            self._known = (overrides, with_overrides(self._recipe, overrides))
        return self._known[1]


def learning_rate(settings: Recipe, step: int) -> float:
    """Learning rate of the update that turns `step` into `step + 1`."""
    return settings.optim.lr * settings.learning_rate_factor(step)


def warming_up(settings: Recipe, step: int) -> bool:
    """The schedule still raises the rate of the update that turns `step` into `step + 1`."""
    return step - settings.optim.schedule.from_step < settings.optim.schedule.warmup_steps


def refuse_if_different(live: Mapping[str, Any], effective: Mapping[str, Any], step: int) -> None:
    """Stop before a step is made with settings nobody asked for, which a `NeedsPerson` lists.
    OPT-175B lost runs 12.35 to 12.40 because restored state silently brought old betas back.
    """
    wrong = [
        f"{name}: live {live.get(name)!r}, asked for {wanted!r}"
        for name, wanted in effective.items()
        if live.get(name) != wanted
    ]
    if wrong:
        raise NeedsPerson(
            f"the optimizer at step {step} does not hold the settings in force: "
            + "; ".join(wrong),
            "no step was made; this is a defect of longhaul or of the optimizer: report it, "
            "and start again from the last checkpoint",
        )


Occurrence = tuple[str, dict[str, object]]
"""Kind and data of an event."""


def put_in_force(
    settings: Recipe, resets: Iterable[Reset], step: TrainingStep, progress: Progress
) -> Iterator[Occurrence]:
    """Put the settings of the next step into the live one, do those resets that it has not done
    yet, and read the settings back; a `NeedsPerson` if it has others. Yields what was swapped or
    reset, for the journal.
    """
    progress.settings = settings
    if swapped := fit_optimizer(step, settings.optim):
        yield swapped
    for reset in resets:
        if reset.number > progress.resets_done:
            yield do_reset(step, progress, reset)
    step.settle(settings.model, progress.position.step)
    rate = next_rate(settings, progress)
    step.apply_settings(settings.optim, rate)
    expected = step.expected_settings(settings.optim, rate)
    refuse_if_different(step.live_settings(), expected, progress.position.step)


def next_rate(settings: Recipe, progress: Progress) -> float:
    """Learning rate of the next step."""
    step = progress.position.step
    return learning_rate(settings, step) * progress.rewarm.factor(step)


def fit_optimizer(step: TrainingStep, settings: OptimSection) -> Occurrence | None:
    """Put the update rule that `settings` name in the place of another one, with fresh state."""
    old = step.optimizer.name
    if old == settings.name:
        return None
    step.before_change()
    sharding = step.optimizer.sharding
    del step.optimizer  # its memory is wanted for the new one
    step.optimizer = build_optimizer(step.model, settings, sharding)
    return EventKind.OPTIMIZER_SWAPPED, {"old": old, "new": settings.name, "state": "fresh"}


def parts_for(
    step: TrainingStep, progress: Progress, facts: Mapping[str, Any]
) -> dict[str, Stateful]:
    """The parts to restore a state with these facts into, with the update rule whose state it is,
    even if the settings in force name another: the trainer swaps them when it begins.
    """
    step.before_change()
    of_optimizer = facts.get("optim")  # which nobody has compared with its hash yet
    name = of_optimizer.get("name") if isinstance(of_optimizer, Mapping) else None
    if isinstance(name, str) and name in OPTIMIZERS:
        fit_optimizer(step, progress.settings.optim.model_copy(update={"name": name}))
    return training_state(step, progress)


def do_reset(step: TrainingStep, progress: Progress, reset: Reset) -> Occurrence:
    """Reset what is named. A training state remembers it, so that one that is restored from before
    does it again, and one from after does not.
    """
    step.before_change()
    if "optimizer" in reset.what:
        step.optimizer.reset()
    if "loss-scale" in reset.what and step.loss_scale is not None:
        step.loss_scale.reset()
    if "data" in reset.what:
        progress.position = replace(progress.position, draw=0)
    if reset.rewarm_steps:
        progress.rewarm = Rewarm(progress.position.step, reset.rewarm_steps)
    progress.resets_done = reset.number
    return EventKind.STATE_RESET, {
        "number": reset.number,
        "what": list(reset.what),
        "rewarm_steps": reset.rewarm_steps,
    }
