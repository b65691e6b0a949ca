"""The learning rate between what was asked for and what the run can bear.

What a run cannot bear is an update of a size, which is the rate that the schedule makes of the peak
(`optim.lr`) at that step. So rates that failed are remembered as they were in force, and a peak is
too high if the schedule still leads it there: what failed at the top of the warm-up may be borne
late in the decay.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longhaul.config.recipe import Recipe
from longhaul.logbook.ledger import LedgerState, Recovery
from longhaul.recover.plan import WHO, Situation

PATH = "optim.lr"
_WITHIN = 1e-6
"""Rates this close are the same: a change of a millionth is none."""
_LAST_STEP_UP = 1.1
"""What is less than this factor short of its end goes there at once."""
_NEAR = math.sqrt(2)
"""Rates within this factor are too alike for one to hold where the other has failed twice."""
LOWEST_SHARE = 2.0**-13
"""Of a rate that has never held, the lowest that is tried: as low as replays search."""
_ROUNDED = 1e-3
"""A factor of 1.4142 is √2."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates (`optim.lr`)."""

    now: float
    requested: float
    """Of the recipe, of a person, or of the fallback that was forked to."""
    ceiling: float
    """Highest that may be tried: `requested`, or clear of what failed twice by a factor of √2."""
    floor: float
    """Lowest that a ladder may set."""
    falls: int = 0
    """How often one that has never held was lowered lately without having risen since."""
    failed_raises: int = 0
    """How often the rate had to go down again since it was first raised: doubles the wait."""

    def lowered(self, factor: float) -> float | None:
        """The next rate down; None if the floor is reached."""
        # One that has never held, and fails after two steps down, is far too high: the steps grow.
        new = max(self.now * factor**2 ** max(0, self.falls - 1), self.floor)
        return new if new < self.now * (1 - _WITHIN) else None

    def raised(self, factor: float) -> float | None:
        """The next rate up; None if the ceiling is reached."""
        new = self.now * factor
        if new * _LAST_STEP_UP > self.ceiling:
            new = self.ceiling
        return new if new > self.now * (1 + _WITHIN) else None


def rates(situation: Situation) -> Rates:
    """The rates as the ledger tells them."""
    now, limits = situation.settings.optim.lr, situation.limits
    requested, chain = _chain(situation.ledger, PATH, now, situation.step)
    ceiling = min(requested, _highest_to_try(chain, situation.settings, situation.step))
    sizes, base, falls = situation.sizes, requested, 0
    if chain and not _has_held(situation, chain[0].step, sizes.raise_after):
        base = requested * LOWEST_SHARE / limits.min_lr_share
        falls = _falls(chain, situation.step, sizes.cooldown)
    for recovery in chain:
        # Replays may have shown that the run bears no more than far below the floor.
        if recovery.settings[PATH] < base * limits.min_lr_share * (1 - _WITHIN):
            base = float(recovery.settings[PATH])
    raised = next((n for n, r in enumerate(chain) if "raise-lr" in r.actions), len(chain))
    failed_raises = sum("raise-lr" not in recovery.actions for recovery in chain[raised:])
    ceiling, floor = max(ceiling, min(now, requested)), base * limits.min_lr_share
    return Rates(now, requested, ceiling, floor, falls, failed_raises)


def in_force(settings: Recipe, step: int) -> float:
    """The rate of the update that led to `step`, which its record tells."""
    return settings.optim.lr * settings.learning_rate_factor(max(step - 1, 0))


def raised_since(situation: Situation, step: int) -> str:
    """Who raised the rate that is in force, if that was after a step and not the policy."""
    override = situation.ledger.override_at(PATH, situation.step)
    if override is None or override.who == WHO or max(override.step, override.from_step) < step:
        return ""
    old = override.old
    raised = isinstance(old, int | float) and override.value > old * (1 + _WITHIN)
    return override.who if raised else ""


def requested_value(situation: Situation, path: str, now: Any) -> Any:
    """The value of a setting that was asked for, before the policy changed it to the one now."""
    return _chain(situation.ledger, path, now, situation.step)[0]


def _highest_to_try(chain: Sequence[Recovery], settings: Recipe, step: int) -> float:
    """The highest peak whose rates stay clear of what failed twice."""
    failed = [rate for recovery in chain for rate in _failed(recovery)]
    twice = [
        rate
        for rate in failed
        if sum(rate / _NEAR * (1 + _ROUNDED) < other <= rate for other in failed) > 1
    ]
    if not twice:
        return math.inf
    warm = settings.optim.schedule.from_step + settings.optim.schedule.warmup_steps
    highest = max(settings.learning_rate_factor(at) for at in {step, max(step, warm)})
    return min(twice) / _NEAR / highest if highest > 0 else math.inf


def _failed(recovery: Recovery) -> tuple[float, ...]:
    if recovery.failed or "lower-lr" not in recovery.actions:
        return recovery.failed
    return (float(recovery.old[PATH]),)  # an older longhaul did not tell at which rate


def _has_held(situation: Situation, failed: int, healthy: int) -> bool:
    """Whether the rate that was asked for had trained for a while before it first failed."""
    set_at = [
        change.step
        for change in situation.ledger.changes
        if change.how != "raise" and PATH in change.settings and change.step <= failed
    ]
    schedule = situation.settings.optim.schedule
    warm = schedule.from_step + schedule.warmup_steps
    return failed - max([warm, *set_at]) > healthy


def _falls(chain: Sequence[Recovery], step: int, cooldown: int) -> int:
    """Steps down in a row, each within a cooldown of the next."""
    count = 0
    for recovery in reversed(chain):
        if "lower-lr" not in recovery.actions or abs(step - recovery.step) > cooldown:
            break
        count, step = count + 1, recovery.step
    return count


def _chain(ledger: LedgerState, path: str, now: Any, step: int) -> tuple[Any, tuple[Recovery, ...]]:
    """The value asked for, and the policy's changes of it since a person or a fallback gave one."""
    override = ledger.override_at(path, step)
    if override is None or override.who != WHO:
        return now, ()
    requested, value, chain = now, None, tuple[Recovery, ...]()
    held: list[tuple[Any, Any, tuple[Recovery, ...]]] = []
    for recovery in ledger.recoveries:
        if recovery.who != WHO or path not in recovery.settings:
            continue
        new = recovery.settings[path]
        if recovery.fallback:
            requested, chain = new, (recovery,)
        elif any(c["how"] != "raise" and path in c["settings"] for c in recovery.undo):
            # As before somebody changed it: with what had been asked for then, and had failed.
            known = [(a, c) for v, a, c in held if v == new]
            requested, chain = known[-1] if known else (new, ())
        elif recovery.old.get(path) == value:
            chain = (*chain, recovery)
        else:
            requested, chain = recovery.old.get(path), (recovery,)
        value = new
        held.append((value, requested, chain))
    return (requested, chain) if value == now else (now, ())
