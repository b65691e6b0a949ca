"""The learning rate between what was asked for and what the run can bear.

Enters: the ledger's recoveries and the rate in force. Leaves: the rate that was asked for, the
highest one that may be tried again, the next one down and the next one up.
Never knows: why a rate is changed.
"""

import itertools
from dataclasses import dataclass
from typing import Any

from longhaul.config.recover import RecoverSection
from longhaul.logbook.ledger import LedgerState, Recovery
from longhaul.recover.plan import WHO, Situation

PATH = "optim.lr"
_WITHIN = 1e-6
"""Rates this close are the same: a change of a millionth is none."""
_LAST_STEP_UP = 1.1
"""What is less than this factor short of its end goes there at once."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates (`optim.lr`)."""

    now: float
    asked: float
    """Of the recipe, of a person, or of the fallback that was forked to."""
    ceiling: float
    """Highest that may be tried: `asked`, or what was in force before a raise that failed."""
    floor: float
    """Lowest that may be set."""

    def lowered(self, factor: float) -> float | None:
        """The next rate down; None if the floor is reached."""
        new = max(self.now * factor, self.floor)
        return new if new < self.now * (1 - _WITHIN) else None

    def raised(self, factor: float) -> float | None:
        """The next rate up; None if the ceiling is reached."""
        new = self.now * factor
        if new * _LAST_STEP_UP > self.ceiling:
            new = self.ceiling
        return new if new > self.now * (1 + _WITHIN) else None


def rates(situation: Situation, limits: RecoverSection, cooldown_steps: int) -> Rates:
    """The rates as the ledger tells them."""
    now = situation.settings.optim.lr
    chain = _chain(situation.ledger, PATH, now, situation.step)
    asked = asked_value(situation, PATH, now)
    ceiling = asked
    for before, after in itertools.pairwise(chain):
        failed = "raise-lr" in before.actions and "lower-lr" in after.actions
        if failed and after.step - before.step <= cooldown_steps:
            ceiling = min(ceiling, float(before.old[PATH]))
    return Rates(now, asked, max(ceiling, min(now, asked)), asked * limits.min_lr_share)


def raised_since(situation: Situation, step: int) -> str:
    """Who raised the rate that is in force, if that was after a step and not the policy; else
    empty. Whatever else the trouble since looks like, the rate is the newest thing about it.
    """
    override = situation.ledger.override_at(PATH, situation.step)
    if override is None or override.who == WHO or max(override.step, override.from_step) < step:
        return ""
    old = override.old
    raised = isinstance(old, int | float) and override.value > old * (1 + _WITHIN)
    return override.who if raised else ""


def asked_value(situation: Situation, path: str, now: Any) -> Any:
    """The value of a setting that was asked for, before the policy changed it.

    Args:
        situation: whose ledger tells.
        path: dotted path.
        now: the value in force.
    """
    chain = _chain(situation.ledger, path, now, situation.step)
    if not chain:
        return now
    first = chain[0]
    return first.settings[path] if first.fallback else first.old[path]


def _chain(ledger: LedgerState, path: str, now: Any, step: int) -> list[Recovery]:
    """The policy's changes of a setting since somebody else last gave it a value, or a fallback
    did, in order.
    """
    override = ledger.override_at(path, step)
    if override is None or override.who != WHO:
        return []
    chain: list[Recovery] = []
    for recovery in ledger.recoveries:
        if recovery.who != WHO or path not in recovery.settings:
            continue
        others = chain and recovery.old.get(path) != chain[-1].settings[path]
        if others or recovery.fallback:
            chain = []
        chain.append(recovery)
    return chain if chain and chain[-1].settings[path] == now else []
