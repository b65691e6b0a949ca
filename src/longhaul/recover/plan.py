"""The words in which a recovery is discussed: where a run stands, where it can go back to, and
what is to be done.

Enters and leaves: `Safe`, `Situation`, `Plan`, all frozen.
Never knows: how a plan comes about, or how it is carried out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from longhaul.config.recipe import Recipe
from longhaul.config.recover import Action, Resettable
from longhaul.core.units import Seconds
from longhaul.diagnose.cause import Verdict
from longhaul.logbook.changes import Change
from longhaul.logbook.ledger import LedgerState

WHO: Final = "policy"
"""Who decided, in the ledger. Only what it decided itself counts against its budgets."""


Where = Literal["memory", "disk", "remote"]


@dataclass(frozen=True, slots=True)
class Safe:
    """A training state that can be gone back to."""

    step: int
    """Updates made."""
    draw: int
    """First block of data that the next step would read."""
    where: Where
    """`remote`: a tier has it, and it must be fetched first."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One warning or alarm about the weights."""

    first_step: int
    """Step of the first sign."""
    step: int
    """Step that brought it to light."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Where the run stands at a step border: all that a decision may depend on."""

    step: int
    """Updates made."""
    draw: int
    """First block of data that the next step would read."""
    blocks_per_step: int
    seconds_per_step: Seconds
    """Of a typical step; only the price depends on it."""
    settings: Recipe
    """In force for the next step: the recipe with the ledger on top."""
    ledger: LedgerState
    good: tuple[Safe, ...] = ()
    """States whose probation is over (`probation.good_states`), by rising step."""
    states: tuple[Safe, ...] = ()
    """All that can be gone back to, in probation or not."""
    troubles: tuple[Trouble, ...] = ()
    """Of the course of training that the run stands on."""
    quiet_since: int = 0
    """Step of the last trouble in the course of training that the run stands on
    (`probation.Course.quiet_since`)."""
    losses: tuple[tuple[int, float], ...] = ()
    """(step, nats) of the last steps of that course, by rising step."""
    gradient_norm: float | None = None
    """Typical norm before clipping of recent healthy steps, if known."""
    residual_max: float | None = None
    """Largest magnitude that the residual stream usually reaches in any layer, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done, at what price, and why."""

    cause: str
    """Kind of the finding that led to it, or `probation` where health did."""
    subject: str = ""
    first_step: int = 0
    """First sign of the cause; 0 without a finding."""
    first_draw: int = 0
    """First block of data of that step."""
    actions: tuple[Action, ...]
    rollback: Safe | None = None
    """State to go back to."""
    skip: tuple[int, int] | None = None
    """Blocks begin ≤ draw < end to pass over; begin is never before the draw gone on from."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted path → new value, in force at once."""
    old: Mapping[str, Any] = field(default_factory=dict)
    """The same paths → values before."""
    reset: tuple[Resettable, ...] = ()
    """State to throw away once, after the rollback."""
    rewarm_steps: int = 0
    """Steps over which the learning rate rises again after a reset of the optimizer."""
    price: Mapping[str, float] = field(default_factory=dict)
    """See `price.price_of`."""
    fallback: str = ""
    """Name of the `[[fallback]]` entry that is forked to; `settings` has its values."""
    undo: tuple[Change, ...] = ()
    """Changes that are undone, oldest first; `settings` has the values before them."""
    failed: tuple[float, ...] = ()
    """Learning rates that the run could not bear, as they were in force at the first sign."""
    stop: bool = False
    """End the attempt with exit code 17: a person must look."""
    verdict: Verdict | None = None
    """What made the steps go wrong, as replays of them tell; None if none were made."""
    headline: str = ""
    """What led to it, in words; `reason` begins with it."""
    reason: str
    """A sentence for a tired person."""

    @property
    def effects(self) -> bool:
        """Whether anything changes, so that a new segment has to open."""
        return bool(self.rollback or self.skip or self.settings or self.reset)

    def decision_data(self, step: int) -> dict[str, Any]:
        """`Decision.data` of kind `recover`, without the checkpoints it poisons.

        Args:
            step: the border at which it is carried out.
        """
        to = self.rollback
        return {
            "cause": self.cause,
            "subject": self.subject,
            "first_step": self.first_step,
            "first_draw": self.first_draw,
            "actions": list(self.actions),
            "rollback": {"from": step, "to": to.step, "draw": to.draw} if to else None,
            "skip": {"begin": self.skip[0], "end": self.skip[1]} if self.skip else None,
            "set": dict(self.settings),
            "old": dict(self.old),
            "reset": list(self.reset),
            "rewarm_steps": self.rewarm_steps,
            "poison": [],
            "price": dict(self.price),
            "fallback": self.fallback,
            "undo": [change.as_data() for change in self.undo],
            "failed": list(self.failed),
            "verdict": _in_short(self.verdict) if self.verdict else None,
        }


def value_at(values: Any, path: str) -> Any:
    """What lies at a dotted path of settings in their JSON form."""
    for part in path.split("."):
        values = values[int(part)] if isinstance(values, list) else values[part]
    return values


def _in_short(verdict: Verdict) -> dict[str, str]:
    return {"cause": verdict.cause, "rung": verdict.rung, "sentence": verdict.sentence}
