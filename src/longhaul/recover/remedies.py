"""What a rung's actions do in this run now: where to go back to, data to skip, settings."""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from longhaul.config.load import leaves
from longhaul.config.recover import SOUND_KINDS, Action, FallbackSection
from longhaul.core.records import Finding, Safe
from longhaul.logbook.ledger import LedgerState
from longhaul.recover.learning_rate import PATH, rates, requested_value
from longhaul.recover.plan import Plan, Remedy, Situation, blocks_left
from longhaul.recover.probation import by_step

_SAME_DATA_STEPS = 3
"""Signs this near to each other in the data are signs of the same data."""


Sign = Finding | Plan
"""Where a cause showed first: a finding, or the plan that came of it."""


def safe_before(good: Sequence[Safe], first_step: int, margin_steps: int) -> Safe | None:
    """The newest good state that lies by the margin before the first sign, or else the oldest that
    lies before it at all; one that would have to be fetched only where there is no other.

    The record of step f shows the weights after f − 1 updates.
    """
    before = by_step(state for state in good if state.step < first_step)
    before = [state for state in before if state.where != "remote"] or before
    well_before = [state for state in before if state.step <= first_step - margin_steps]
    return well_before[-1] if well_before else next(iter(before), None)


def range_to_skip(situation: Situation, sign: Sign, to: Safe) -> tuple[int, int] | None:
    """Blocks to pass over: a quarter of the range before the first sign, as PaLM's began before
    its spikes, not before the state gone back to. A share that is nearly spent makes it shorter;
    None if it does not even hold the batch of the first sign, or if that is passed over already.
    """
    length = situation.sizes.skip * situation.blocks_per_step
    begin = max(to.draw, sign.first_draw - length // 4)
    return _within_budget(situation, sign, begin, begin + length)


def batch_to_skip(situation: Situation, sign: Sign, to: Safe) -> tuple[int, int] | None:
    """The batch of the first sign and the one before, which may have harmed the weights."""
    begin = max(to.draw, sign.first_draw - situation.blocks_per_step)
    return _within_budget(situation, sign, begin, 0)


def same_data(ledger: LedgerState, sign: Sign, blocks_per_step: int) -> bool:
    """Whether a recovery went back over this data before, and it was read again."""
    near = _SAME_DATA_STEPS * blocks_per_step
    return any(
        recovery.to_step is not None and abs(recovery.first_draw - sign.first_draw) <= near
        for recovery in ledger.recoveries
    )


def _within_budget(
    situation: Situation, sign: Sign, begin: int, end: int
) -> tuple[int, int] | None:
    least, left = sign.first_draw + situation.blocks_per_step, blocks_left(situation)
    end = max(least, min(end, begin + left))
    fits = end - begin <= left
    known = any(first <= sign.first_draw < last for first, last in situation.ledger.skips)
    return (begin, end) if begin <= sign.first_draw and fits and not known else None


CLIP = "optim.clip"
CLAMP = "model.residual_clamp"
_CLAMP_FACTOR = 2.0
"""Times what the stream usually reaches: healthy steps are left as they are."""
_LEAST_CLIP_SHARE = 0.1
"""OPT-175B went from 2.5 to 0.3; far below the usual norm, clipping is but a lower rate."""
_CLIP_WITHOUT_ONE = 2.0
"""Times the usual gradient norm: the first clip of a run that had none."""


def remedy_of(
    rung: tuple[Action, ...], situation: Situation, sign: Sign, safe: Safe | None
) -> Remedy | None:
    """What a rung does now, at a lower rate where nothing can be gone back to; None if nothing of
    it that could cure is left to be done. `safe`: the state to go back to, if there is one.
    """
    to = safe if "rollback" in rung else None
    if to is None and "rollback" in rung and "lower-lr" not in rung:
        rung = (*rung, "lower-lr")
    remedy = Remedy(("rollback",) if to else (), to)
    for action in rung:
        remedy = _with_action(remedy, action, situation, sign)
    cures = [action for action in rung if action not in ("rollback", "report", "mask")]
    cured = [action for action in remedy.actions if action in cures]
    # Going back alone would lead to the same place again, bit by bit; a rung that asks for
    # nothing else is a person's own choice.
    return remedy if remedy.actions and (cured or not cures) else None


def fallback_remedy(
    entry: FallbackSection, situation: Situation, sign: Finding, safe: Safe | None
) -> Remedy:
    """A fallback: its settings, from the last good state if there is one; sound weights stay."""
    to = None if sign.kind in SOUND_KINDS else safe
    rewarm_steps = situation.sizes.rewarm if "optimizer" in entry.reset else 0
    actions: tuple[Action, ...] = ("rollback", "fallback") if to else ("fallback",)
    return Remedy(actions, to, None, dict(leaves(entry.set)), entry.reset, rewarm_steps)


def _with_action(remedy: Remedy, action: Action, situation: Situation, sign: Sign) -> Remedy:
    to = remedy.rollback
    added = replace(remedy, actions=(*remedy.actions, action))
    match action:
        case "report" | "mask":
            return added
        case "skip" | "skip-batch":
            if to is None or remedy.skip is not None:
                return remedy
            which = range_to_skip if action == "skip" else batch_to_skip
            skip = which(situation, sign, to)
            return replace(added, skip=skip) if skip else remedy
        case "lower-lr":
            path, value = PATH, rates(situation).lowered(situation.limits.lr_factor)
        case "tighten-clip":
            path, value = CLIP, _tighter_clip(situation)
        case "clamp":
            usual, now = situation.residual_max, situation.settings.model.residual_clamp
            path, value = CLAMP, _CLAMP_FACTOR * usual if usual and not now else None
        case "reset-loss-scale":
            if situation.settings.precision.half_weights != "fp16":
                return remedy
            return replace(added, reset=(*remedy.reset, "loss-scale"))
        case "reset-optimizer":
            reset = (*remedy.reset, "optimizer")
            return replace(added, reset=reset, rewarm_steps=situation.sizes.rewarm)
        case "rollback" | "undo" | "raise-lr" | "fallback" | "accept" | "stop":
            return remedy  # done for the whole rung, or never by one
        case _:
            assert_never(action)
    if value is None:
        return remedy
    return replace(added, settings={**remedy.settings, path: value})


def _tighter_clip(situation: Situation) -> float | None:
    now = situation.settings.optim.clip
    if now == 0:
        norm = situation.gradient_norm
        return _CLIP_WITHOUT_ONE * norm if norm else None
    requested = float(requested_value(situation, CLIP, now))
    # A run that was asked for no clip at all got its first one from its usual norm.
    floor = _LEAST_CLIP_SHARE * (requested or now)
    new = max(now * situation.limits.clip_factor, floor)
    return new if new < now else None
