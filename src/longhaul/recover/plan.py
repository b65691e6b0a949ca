"""Where a run stands, where it can go back to, what is to be done; how long the policy's lengths
are in this run, and how much was spent on recoveries.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from longhaul.config.recipe import Recipe, change_of
from longhaul.config.recover import Action, RecoverSection, Resettable
from longhaul.core.records import Safe
from longhaul.core.units import Seconds
from longhaul.diagnose.cause import Verdict
from longhaul.logbook.changes import Change
from longhaul.logbook.ledger import LedgerState, Recovery

WHO: Final = "policy"
"""Who decided, in the ledger. Only what it decided itself counts against its budgets."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths in steps, of which those absent in `RecoverSection` are a share of a short run."""

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

    def of(given: int | None, most: int, share: float) -> int:
        if given is not None:
            return given
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


@dataclass(frozen=True, slots=True)
class Trouble:
    """One warning or alarm about the weights."""

    first_step: int
    """Step of the first sign."""
    step: int
    """Step that brought it to light."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Where the run stands at a step boundary: all that a decision may depend on."""

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
    """Step of the last trouble of that course (`probation.Course.quiet_since`)."""
    losses: tuple[tuple[int, float], ...] = ()
    """(step, nats) of the last steps of that course, by rising step."""
    gradient_norm: float | None = None
    """Typical norm before clipping of recent healthy steps, if known."""
    residual_max: float | None = None
    """Largest magnitude that the residual stream usually reaches in any layer, if known."""

    @property
    def limits(self) -> RecoverSection:
        """Ladders, lengths and budgets in force."""
        return self.settings.recover

    @property
    def sizes(self) -> Sizes:
        """The lengths in force."""
        return sizes_of(self.limits, self.settings.total_steps())


@dataclass(frozen=True, slots=True)
class Remedy:
    """What is to be done; ValueError if no live run could do it."""

    actions: tuple[Action, ...]
    rollback: Safe | None = None
    """State to go back to."""
    skip: tuple[int, int] | None = None
    """Blocks begin ≤ draw < end to pass over; begin is never before the draw gone on from."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted path → new value, in force at once."""
    reset: tuple[Resettable, ...] = ()
    """State to throw away once, after the rollback."""
    rewarm_steps: int = 0
    """Steps over which the learning rate rises again after a reset of the optimizer."""
    undo: tuple[Change, ...] = ()
    """Changes that are undone, oldest first; `settings` has the values before them."""

    def __post_init__(self) -> None:
        if wrong := [path for path in self.settings if change_of(path) != "live"]:
            raise ValueError(f"{', '.join(wrong)}: no remedy can change it in a live run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Remedy):
    """The same with its price, and why."""

    cause: str
    """Kind of the finding that led to it, or `probation` where health did."""
    subject: str = ""
    first_step: int = 0
    """First sign of the cause; 0 without a finding."""
    first_draw: int = 0
    """First block of data of that step."""
    old: Mapping[str, Any] = field(default_factory=dict)
    """The paths of `settings` → values before."""
    price: Mapping[str, float] = field(default_factory=dict)
    """See `draft.price_of`."""
    fallback: str = ""
    """Name of the `[[fallback]]` entry that is forked to; `settings` has its values."""
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
        """`Decision.data` of kind `recover`, decided at `step`; what it poisons is added."""
        to, verdict = self.rollback, self.verdict
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
            "verdict": verdict
            and {"cause": verdict.cause, "rung": verdict.rung, "sentence": verdict.sentence},
        }


FREE = frozenset({"mask", "report", "raise-lr", "fallback", "accept", "stop"})
"""Actions that no budget counts. Of fallbacks there are as many as the recipe lists."""


def is_free(actions: Collection[str]) -> bool:
    """Whether no budget counts them: what is undone is undone once only, wherever it goes back."""
    return "undo" in actions or FREE.issuperset(actions)


def own_recoveries(ledger: LedgerState) -> list[Recovery]:
    """What the policy decided, in order."""
    return [recovery for recovery in ledger.recoveries if recovery.who == WHO]


def since_fallback(ledger: LedgerState) -> list[Recovery]:
    """What it decided since the last fallback, with which budgets and ladders begin anew."""
    own = own_recoveries(ledger)
    last = max((n for n, recovery in enumerate(own) if recovery.fallback), default=-1)
    return own[last + 1 :]


def spent(situation: Situation) -> str:
    """Why no further recovery may be paid for; empty if one may."""
    limits, cooldown_steps = situation.limits, situation.sizes.cooldown
    paid = [r for r in since_fallback(situation.ledger) if not is_free(r.actions)]
    if len(paid) >= limits.max_recoveries:
        return (
            f"{len(paid)} recoveries were made, and recover.max_recoveries allows "
            f"{limits.max_recoveries}"
        )
    lately = sum(situation.step - r.step <= cooldown_steps for r in paid)
    if lately >= limits.max_recoveries_per_cooldown:
        return (
            f"{lately} recoveries were made within {cooldown_steps:,} steps, and "
            f"recover.max_recoveries_per_cooldown allows {limits.max_recoveries_per_cooldown}"
        )
    return ""


def blocks_left(situation: Situation) -> int:
    """Blocks of data that may still be passed over; what people skipped counts too. Where only
    hours limit a run, its data is what it has read so far.
    """
    total = situation.settings.total_steps()
    data = situation.draw if total is None else total * situation.blocks_per_step
    skipped = sum(end - begin for begin, end in situation.ledger.skips)
    return max(int(situation.limits.max_skipped_share * data) - skipped, 0)
