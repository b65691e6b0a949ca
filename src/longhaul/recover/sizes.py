"""How long the lengths of a policy are in this run.

Enters: `RecoverSection` and the length of the run. Leaves: steps. What worked for PaLM and OPT-175B
over 100,000 steps and more would swallow a short run, so that absent lengths are a share of it.
Never knows: findings.
"""

import math
from dataclasses import dataclass

from longhaul.config.recover import RecoverSection


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths in steps; see the fields of `RecoverSection`."""

    margin: int
    skip: int
    probation: int
    cooldown: int
    settle: int
    rewarm: int
    raise_after: int
    suspect: int | None = None
    """As asked for; None: it depends on what was changed (`suspect.steps_to_show`)."""


def sizes_of(limits: RecoverSection, total_steps: int | None) -> Sizes:
    """The lengths in force in a run of so many steps; None if only its hours are known."""

    def of(asked: int | None, most: int, share: float) -> int:
        if asked is not None:
            return asked
        return most if total_steps is None else max(1, min(most, math.ceil(total_steps * share)))

    return Sizes(
        margin=of(limits.margin_steps, 100, 1 / 50),
        skip=of(limits.skip_steps, 300, 1 / 25),
        probation=of(limits.probation_steps, 100, 1 / 50),
        cooldown=of(limits.cooldown_steps, 5_000, 1 / 4),
        settle=of(limits.settle_steps, 50, 1 / 100),
        rewarm=of(limits.rewarm_steps, 200, 1 / 50),
        raise_after=of(limits.raise_after_steps, 2_000, 1 / 20),
        suspect=limits.suspect_steps,
    )
