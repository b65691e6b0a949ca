"""What changed just before a sign is its first suspect, which is undone before any ladder."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from longhaul.config.load import value_at
from longhaul.config.recipe import Recipe, change_of
from longhaul.config.recover import SOUND_KINDS
from longhaul.core.records import Finding, Safe
from longhaul.logbook.changes import Change, Pairs
from longhaul.logbook.description import changes_in_words
from longhaul.logbook.ledger import LedgerState
from longhaul.recover.learning_rate import PATH
from longhaul.recover.plan import Remedy, Situation, Sizes
from longhaul.recover.probation import innocent_states
from longhaul.recover.remedies import CLIP

WEIGHT_DECAY = "optim.weight_decay"
_COMPUTES = (
    "optim.", "model.", "batch.", "data.", "precision.", "order.", "parallel.", "machine.",
    "train.steps", "train.tokens",
)  # fmt: skip
"""Settings that numbers come from. The others cannot harm a weight."""
_FOUND_BY_THE_RUN = frozenset({"batch.micro_sequences", "machine.device"})
_EXACT = frozenset({"non-finite"})
"""Kinds of finding whose first sign is no estimate."""
_MEMORIES = 2.0
"""Times the second moment's memory: by then a change of the gradients' scale has shown."""
_WAITS = 2.0


def suspect(
    changes: Sequence[Change], sign: Finding, settings: Recipe, sizes: Sizes
) -> Change | None:
    """The newest change that the sign may come of; None if there is none.

    A change is suspected if it came into force before the finding was made and no more than
    `steps_to_show` before its first sign. First signs are estimates: the change may lie up to a
    margin behind them.
    """
    late = 0 if sign.kind in _EXACT else sizes.margin
    latest = min(sign.step - 1, sign.first_step - 1 + late)
    near = (
        change
        for change in changes
        if sign.first_step - steps_to_show(change, settings, sizes) <= change.step <= latest
    )
    return max(near, key=lambda change: change.step, default=None)


def steps_to_show(change: Change, settings: Recipe, sizes: Sizes) -> int:
    """Steps in which a change shows what it does, at most the cooldown."""
    if sizes.suspect is not None:
        return sizes.suspect
    optim = settings.optim
    times = [float(sizes.probation), _MEMORIES / (1 - optim.beta2)]
    if WEIGHT_DECAY in change.settings and optim.weight_decay > 0:
        times.append(1 / (optim.lr * optim.weight_decay))
    if change.how == "raise":
        times.append(_WAITS * sizes.raise_after)  # a rate that does not hold so long did not hold
    return min(math.ceil(max(times)), sizes.cooldown)


def harmful(change: Change, settings: Recipe, ledger: LedgerState) -> Pairs:
    """What of a change still holds and could do harm: no lower rate or tighter clip, and nothing
    that was undone once and set again, on purpose.
    """
    found, values = {}, settings.model_dump(mode="json")
    for path, (before, since) in change.settings.items():
        if not path.startswith(_COMPUTES) or path in _FOUND_BY_THE_RUN or before == "auto":
            continue  # what is "auto" the run finds for itself
        now = value_at(values, path)
        if now == before or (path == PATH and now < before):
            continue
        if path == CLIP and (now or math.inf) <= (before or math.inf):
            continue
        if change.how != "raise" and ledger.undone(path, since) is not None:
            continue
        found[path] = (before, since)
    return found


def stage_before(sign: Finding, settings: Recipe, blocks_per_step: int, within: int) -> str:
    """The stage of the mixture that began just before a sign, in words; empty if none did."""
    for number, stage in reversed(list(enumerate(settings.data.stages, start=1))):
        steps = (sign.first_draw - stage.from_draw) // blocks_per_step
        if stage.from_draw <= sign.first_draw and steps <= within:
            return f"stage {number} of the mixture began, as planned, {steps:,} steps before"
    return ""


def in_words(changes: Iterable[Change]) -> str:
    """Who changed what, and when, oldest first."""
    return " and ".join(_in_words(change) for change in changes)


def _in_words(change: Change) -> str:
    pairs = {**change.settings, **change.surroundings}
    what = changes_in_words(pairs)
    if change.resets:
        what = ", ".join(filter(None, (what, "a reset")))
    when = time.strftime(" (%d %b %H:%M:%S UTC)", time.gmtime(change.time)) if change.time else ""
    how = {
        "set": f"{change.who} set",
        "fork": f"{change.who} forked with",
        "restart": f"a restart by {change.who} with",
        "raise": f"the {change.who} raised",
    }[change.how]
    return f"{how} {what} at step {change.step:,}{when}"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What changed just before a sign."""

    words: str = ""
    """Who changed what and when; empty if nothing changed."""
    remedy: Remedy | None = None
    """Undoes it; None if it cannot be undone, or shall not be."""
    surroundings: bool = False
    """Software or machines changed, and nothing that can be undone."""


def suspicion(situation: Situation, cause: Finding) -> Suspicion:
    """What changed just before a sign, and how it is undone.

    The run goes back to the newest good state before the change. Software, machines and what needs
    a restart cannot be undone by a live run; they are named, and the ladder goes on.
    """
    settings, ledger, sizes = situation.settings, situation.ledger, situation.sizes
    able = [
        change
        for change in ledger.changes
        if change.surroundings or change.resets or harmful(change, settings, ledger)
    ]
    newest = suspect(able, cause, settings, sizes)
    if newest is None:
        within = max(sizes.probation, sizes.suspect or 0)
        stage = stage_before(cause, settings, situation.blocks_per_step, within)
        return Suspicion(f"after {stage}" if stage else "")
    near = [change for change in able if suspect([change], cause, settings, sizes) is not None]
    together, to = _together(newest, near, situation)
    remedy = _undone(together, situation, to)
    if remedy is None:
        words = f"after {in_words([newest])}, which a live run cannot undo"
        return Suspicion(words, None, bool(newest.surroundings))
    words = f"after {in_words(remedy.undo)}"
    if cause.kind in SOUND_KINDS or not situation.limits.undo:
        return Suspicion(words)
    return Suspicion(words, remedy)


def _together(
    newest: Change, near: Sequence[Change], situation: Situation
) -> tuple[list[Change], Safe | None]:
    """The state to go back to, and all suspects that came after it."""
    known = [newest]
    while True:
        states = [_newest_before(change, situation) for change in known]
        there = [state for state in states if state is not None]
        to = min(there, key=lambda state: state.step) if len(there) == len(states) else None
        begin = min(change.step for change in known) if to is None else to.step
        found = [change for change in near if change.step >= begin]
        if len(found) <= len(known):
            return known, to
        known = found


def _undone(near: Sequence[Change], situation: Situation, to: Safe | None) -> Remedy | None:
    """All that was changed since the state gone back to, as it was there."""
    values, undone = dict[str, Any](), list[Change]()
    for change in near:
        parts = harmful(change, situation.settings, situation.ledger)
        before = {
            path: pair[0]
            for path, pair in parts.items()
            # The length of a run is no fault.
            if change_of(path) == "live" and path.startswith(("optim.", "model."))
        }
        if before or change.resets:
            values = before | values  # the oldest of several tells what it was
            undone.append(change)
    if not undone:
        return None
    return Remedy(("rollback", "undo") if to else ("undo",), to, settings=values,
                  undo=tuple(undone))  # fmt: skip


def _newest_before(change: Change, situation: Situation) -> Safe | None:
    """The newest state before a change that nothing older speaks against; fetched if need be."""
    innocent = innocent_states(situation, change.step - change.renews)
    here = [state for state in innocent if state.where != "remote"] or innocent
    return here[-1] if here else None
