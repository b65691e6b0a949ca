"""The rung before every ladder: what was changed just before a sign is as it was before.

The run goes back to the newest good state before the change, and never past it: what lies before
has nothing to do with it. Software, machines and what needs a restart cannot be undone by a live
run, nor does going back help while they stay; they are named, and the ladder goes on.

Enters: a situation, a finding, limits. Leaves: a remedy, the changes in words, or neither.
Never knows: ladders or budgets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longhaul.config.recover import SOUND_KINDS, RecoverSection
from longhaul.core.records import Finding
from longhaul.logbook.changes import Change
from longhaul.recover.plan import Safe, Situation
from longhaul.recover.probation import innocent_states
from longhaul.recover.rungs import Remedy
from longhaul.recover.sizes import Sizes
from longhaul.recover.suspect import (
    can_be_undone,
    harmful,
    in_words,
    stage_before,
    suspect,
)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What changed just before a sign."""

    words: str = ""
    """Who changed what and when; empty if nothing changed."""
    remedy: Remedy | None = None
    """Undoes it; None if it cannot be undone, or shall not be."""
    surroundings: bool = False
    """Software or machines changed, and nothing that can be undone."""


def suspicion(
    situation: Situation, cause: Finding, limits: RecoverSection, sizes: Sizes
) -> Suspicion:
    """What changed just before a sign, and how it is undone."""
    settings, ledger = situation.settings, situation.ledger
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
    together, to = _together(newest, near, situation, sizes)
    remedy = _undone(together, situation, to)
    if remedy is None:
        words = f"after {in_words([newest])}, which a live run cannot undo"
        return Suspicion(words, None, bool(newest.surroundings))
    words = f"after {in_words(remedy.undo)}"
    if cause.kind in SOUND_KINDS or not limits.undo:
        return Suspicion(words)
    return Suspicion(words, remedy)


def _together(
    newest: Change, near: Sequence[Change], situation: Situation, sizes: Sizes
) -> tuple[list[Change], Safe | None]:
    """The state to go back to, and all suspects that came after it."""
    known = [newest]
    while True:
        states = [_newest_before(change, situation, sizes) for change in known]
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
        before = {path: pair[0] for path, pair in parts.items() if can_be_undone(path)}
        if before or change.resets:
            values = before | values  # the oldest of several tells what it was
            undone.append(change)
    if not undone:
        return None
    return Remedy(("rollback", "undo") if to else ("undo",), to, settings=values,
                  undo=tuple(undone))  # fmt: skip


def _newest_before(change: Change, situation: Situation, sizes: Sizes) -> Safe | None:
    """The newest state before a change that nothing older speaks against; one that would have to
    be fetched only where there is no other.
    """
    states = situation.states or situation.good
    innocent = innocent_states(
        states, situation.troubles, change.step - change.renews, sizes.margin, sizes.probation
    )
    here = [state for state in innocent if state.where != "remote"] or innocent
    return here[-1] if here else None
