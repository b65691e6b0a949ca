"""Effective settings: the recipe with the ledger on top, at any step (DESIGN rule 1).

Enters: a recipe and the ledger's state. Leaves: the settings in force, and the refusal to go on
when the live optimizer holds others. Never knows: who decided what, or when.
"""

from collections.abc import Mapping
from typing import Any

from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.errors import NeedsPerson
from longhaul.logbook.ledger import LedgerState


class EffectiveSettings:
    """The settings in force at each step, worked out once per change of the ledger."""

    def __init__(self, recipe: Recipe, ledger: LedgerState) -> None:
        self._recipe = recipe
        self._ledger = ledger
        self._known: tuple[dict[str, Any], Recipe] | None = None

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
    """Stop before a step is made with settings nobody asked for.

    OPT-175B lost runs 12.35 to 12.40 because restored state silently brought old betas back.

    Raises:
        NeedsPerson: with every setting that differs, live and effective.
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
