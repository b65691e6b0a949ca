"""The ledger: what has been decided about a run, and stays decided.

It is a fold over the decisions in the journal and never rolls back: a crash or a rollback
restores weights, not a learning rate that somebody had lowered. A decision is on the medium
before it takes effect; what cannot be written is not applied.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from longhaul.core.errors import LonghaulError
from longhaul.core.records import Decision
from longhaul.core.units import Seconds
from longhaul.logbook.changes import Change, after_decision, as_far
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import Journal
from longhaul.logbook.mixture_changes import MixtureBefore
from longhaul.logbook.reading import read_journal

Health = Literal["written", "committed", "verified", "good", "poisoned"]
HEALTHS: tuple[Health, ...] = get_args(Health)
"""In order; a checkpoint's health only moves forward, and `poisoned` is final."""


class LedgerError(LonghaulError):
    """A decision could not be written, or makes no sense; it was not applied."""


@dataclass(frozen=True)
class Override:
    """One setting's value by decision, from a step count on."""

    value: Any
    from_step: int
    step: int
    """Border at which it was decided."""
    who: str
    reason: str
    time: Seconds
    old: Any = None
    """Value that was in force before; None if the decision does not tell."""


@dataclass(frozen=True)
class CheckpointHealth:
    """What is known of the checkpoint of one step."""

    health: Health
    manifest: str
    """Hash of its manifest; a checkpoint written again at the same step has another."""
    former: Mapping[str, Health] = field(default_factory=dict)
    """Manifest hash → last health of earlier checkpoints of this step, which a tier may hold."""

    @property
    def is_sound(self) -> bool:
        """Whether the checkpoint was read back, and nothing speaks against it."""
        return self.health in ("verified", "good")

    def of(self, manifest: str) -> Health:
        """Health of this step's checkpoint with this manifest's hash; empty if it cannot be read.

        One that the ledger does not know starts over as committed, unless the step was poisoned
        without a hash: then nothing proves that it is another one.
        """
        if manifest in ("", self.manifest) or (not self.manifest and self.health == "poisoned"):
            return self.health
        return self.former.get(manifest, self.former.get("", "committed"))

    @property
    def poisoned(self) -> frozenset[str]:
        """Manifest hashes of the checkpoints of this step that must not be gone on from."""
        healths = {**self.former, self.manifest: self.health}
        return frozenset(name for name, health in healths.items() if health == "poisoned")

    @property
    def unpoisoned(self) -> frozenset[str]:
        """Manifest hashes of all others of this step."""
        return frozenset({self.manifest, *self.former} - self.poisoned - {""})


@dataclass(frozen=True)
class Recovery:
    """One recovery that was decided: what budgets and cooldowns are counted from."""

    step: int
    """Border at which it was decided."""
    time: Seconds
    who: str
    cause: str
    """Kind of the finding that led to it."""
    subject: str
    actions: tuple[str, ...]
    to_step: int | None
    """Step that was gone back to; None if it was none."""
    old: Mapping[str, Any]
    """Dotted path → value before, of what it set."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The same paths → values it set."""
    first_draw: int = 0
    """First block of data of the step of the first sign."""
    skip: tuple[int, int] | None = None
    """Blocks it passed over."""
    fallback: str = ""
    """Name of the fallback that it forked to."""
    undo: tuple[Mapping[str, Any], ...] = ()
    """Changes that it undid (`Change.as_data`)."""
    failed: tuple[float, ...] = ()
    """Learning rates, in force at the first sign, that the run could not bear."""


@dataclass(frozen=True)
class Reset:
    """State to be thrown away once by every training state that has not done so yet."""

    number: int
    """Counts resets from 1; a training state remembers the last one it has done."""
    what: tuple[str, ...]
    """`optimizer`, `loss-scale`."""
    rewarm_steps: int
    """Steps of warm-up that follow the reset."""


@dataclass(frozen=True)
class LedgerState:
    """Everything decided so far.

    In force at a step is, of the decisions on a setting whose `from_step` is not beyond it, the one
    written last: an immediate one (`from_step` 0) supersedes every earlier one.
    """

    overrides: Mapping[str, tuple[Override, ...]] = field(default_factory=dict)
    """Dotted path → values that can still come into force, by rising `from_step`."""
    withdrawn: Mapping[str, Override] = field(default_factory=dict)
    """Dotted path → the immediate value that was in force when its decisions were withdrawn."""
    skips: tuple[tuple[int, int], ...] = ()
    """Blocks of the order of data to pass over: disjoint ranges begin ≤ draw < end, rising."""
    checkpoint_health: Mapping[int, CheckpointHealth] = field(default_factory=dict)
    """Step of a checkpoint → its health."""
    recoveries: tuple[Recovery, ...] = ()
    """In the order decided."""
    resets: tuple[Reset, ...] = ()
    changes: tuple[Change, ...] = ()
    """What is not as it was at the run's first step, and was not undone."""
    mixture_before: MixtureBefore | None = None
    """What was drawn before the mixture was last changed; None if it never was."""
    decisions: int = 0
    """How many decisions were folded in."""

    def undone(self, path: str, value: Any) -> Recovery | None:
        """The recovery that undid a change of a setting to this value, or to one less far."""
        for recovery in reversed(self.recoveries):
            for change in recovery.undo:
                pair = change["settings"].get(path)
                if pair is not None and as_far(pair[0], pair[1], value):
                    return recovery
        return None

    def override_at(self, path: str, step: int) -> Override | None:
        """The decision in force on one setting for the update after `step`."""
        begun = [item for item in self.overrides.get(path, ()) if item.from_step <= step]
        return begun[-1] if begun else None

    def overrides_at(self, step: int) -> dict[str, Any]:
        """Dotted path → value of every setting that a decision governs after `step` updates."""
        found = {path: self.override_at(path, step) for path in self.overrides}
        return {path: item.value for path, item in found.items() if item is not None}


def fold(state: LedgerState, decision: Decision) -> LedgerState:
    """The state with one more decision; LedgerError if that lacks what its kind needs."""
    try:
        state = _with_values(state, decision)
        changes = after_decision(state.changes, decision, len(state.resets))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise LedgerError(
            f"decision {decision.kind} at step {decision.step} by {decision.who}: "
            f"{dict(decision.data)!r:.300} is not what this kind needs ({error!r})"
        ) from error
    return replace(state, changes=changes, decisions=state.decisions + 1)


def _with_values(state: LedgerState, decision: Decision) -> LedgerState:
    data = decision.data
    match decision.kind:
        case "set":
            return _with_override(state, decision, data["path"], data["value"], data.get("old"))
        case "unset":
            path = data["path"]
            kept = {name: items for name, items in state.overrides.items() if name != path}
            last = state.override_at(path, 0)
            withdrawn = state.withdrawn if last is None else {**state.withdrawn, path: last}
            return replace(state, overrides=kept, withdrawn=withdrawn)
        case "mixture":
            return replace(state, mixture_before=MixtureBefore.from_data(data["before"]))
        case "skip":
            return _with_skip(state, int(data["begin"]), int(data["end"]))
        case "checkpoint-health":
            return _with_health(state, data)
        case "recover":
            return _with_recovery(state, decision)
    return state


def fold_all(decisions: Iterable[Decision]) -> LedgerState:
    """The state after all decisions, in the order written."""
    return functools.reduce(fold, decisions, LedgerState())


def load_ledger(folder: RunFolder) -> tuple[LedgerState, int]:
    """The state of a run's ledger, and the count of damaged lines that may have been decisions."""
    reading = read_journal(folder, steps=False)
    state = fold_all(record for record in reading if isinstance(record, Decision))
    return state, reading.damaged


def write_decision(journal: Journal, state: LedgerState, decision: Decision) -> LedgerState:
    """Bring a decision onto the medium; the state after it. Nothing is applied after a LedgerError:
    it could not be written or makes no sense; or a NotOwner: another attempt decides by now.
    """
    after = fold(state, decision)
    try:
        journal.append_durably(decision)
    except OSError as error:
        raise LedgerError(
            f"decision {decision.kind} {dict(decision.data)} could not be written to the "
            f"journal and was not applied: {error}",
            "free space on the run's disk, or mend its mount, and ask again",
        ) from error
    return after


def _with_recovery(state: LedgerState, decision: Decision) -> LedgerState:
    """All parts of a recovery at once: it is one line in the journal."""
    data = decision.data
    for path, value in data.get("set", {}).items():
        state = _with_override(state, decision, path, value, data.get("old", {}).get(path))
    if skip := data.get("skip"):
        state = _with_skip(state, int(skip["begin"]), int(skip["end"]))
    for step, manifest in data.get("poison", ()):
        health = {"checkpoint": step, "health": "poisoned", "manifest": manifest}
        state = _with_health(state, health)
    if what := tuple(data.get("reset", ())):
        new = Reset(len(state.resets) + 1, what, int(data.get("rewarm_steps", 0)))
        state = replace(state, resets=(*state.resets, new))
    if undo := tuple(data.get("undo", ())):
        # A state from before an undone reset is gone back to as it was.
        taken_back = {number for change in undo for number in change["resets"]}
        kept = (replace(r, what=(), rewarm_steps=0) if r.number in taken_back else r
                for r in state.resets)  # fmt: skip
        state = replace(state, resets=tuple(kept))
    rollback = data.get("rollback")
    recovery = Recovery(
        step=decision.step,
        time=decision.time,
        who=decision.who,
        cause=str(data["cause"]),
        subject=str(data.get("subject", "")),
        actions=tuple(data["actions"]),
        to_step=int(rollback["to"]) if rollback else None,
        old=data.get("old", {}),
        settings=data.get("set", {}),
        first_draw=int(data.get("first_draw", 0)),
        skip=(int(skip["begin"]), int(skip["end"])) if skip else None,
        fallback=str(data.get("fallback", "")),
        undo=undo,
        failed=tuple(float(rate) for rate in data.get("failed", ())),
    )
    return replace(state, recoveries=(*state.recoveries, recovery))


def _with_override(
    state: LedgerState, decision: Decision, path: Any, value: Any, old: Any
) -> LedgerState:
    if not isinstance(path, str) or not path:
        raise ValueError(f"path {path!r} is no dotted path")
    new = Override(
        value=value, from_step=decision.from_step, step=decision.step,
        who=decision.who, reason=decision.reason, time=decision.time, old=old,
    )  # fmt: skip
    # Whatever began at or after the new one's step can never be in force again.
    kept = [item for item in state.overrides.get(path, ()) if item.from_step < new.from_step]
    return replace(state, overrides={**state.overrides, path: (*kept, new)})


def _with_skip(state: LedgerState, begin: int, end: int) -> LedgerState:
    if not 0 <= begin < end:
        raise ValueError(f"draws {begin} to {end} are no range")
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*state.skips, (begin, end)]):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return replace(state, skips=tuple(merged))


def _with_health(state: LedgerState, data: Mapping[str, Any]) -> LedgerState:
    step, manifest = int(data["checkpoint"]), str(data.get("manifest") or "")
    if data["health"] not in HEALTHS:
        raise ValueError(f"health {data['health']!r} is not one of {', '.join(HEALTHS)}")
    new = CheckpointHealth(data["health"], manifest)
    if (old := state.checkpoint_health.get(step)) is not None:
        new = _health_after(old, new)
    return replace(state, checkpoint_health={**state.checkpoint_health, step: new})


def _health_after(old: CheckpointHealth, new: CheckpointHealth) -> CheckpointHealth:
    # Training that was rolled back passes the same step again and saves another checkpoint there;
    # its manifest differs, and so it does not inherit the old one's health.
    if new.manifest in ("", old.manifest):
        return replace(old, health=max(old.health, new.health, key=HEALTHS.index))
    if old.manifest and "poisoned" in (new.health, old.former.get(new.manifest)):
        return replace(old, former={**old.former, new.manifest: "poisoned"})
    former = {name: health for name, health in old.former.items() if name != new.manifest}
    if old.manifest or old.health == "poisoned":
        former[old.manifest] = old.health
    return replace(new, former=former)
