"""Where to go back to, and which data to pass over.

Enters: good states, the first sign, budgets. Leaves: a state, a range of draws.
Never knows: whether going back is wise.
"""

from collections.abc import Sequence
from typing import Protocol

from longhaul.config.recover import RecoverSection
from longhaul.logbook.ledger import LedgerState
from longhaul.recover.budgets import blocks_left
from longhaul.recover.plan import Safe, Situation
from longhaul.recover.sizes import Sizes

_SAME_DATA_STEPS = 3
"""Signs this near to each other in the data are signs of the same data."""


class Sign(Protocol):
    """Where a cause showed first: a finding, or the plan that came of it."""

    @property
    def first_step(self) -> int:
        """Step of the first sign."""

    @property
    def first_draw(self) -> int:
        """First block of data of that step."""


def safe_before(good: Sequence[Safe], first_step: int, margin_steps: int) -> Safe | None:
    """The newest good state that lies by the margin before the first sign; where none does, in the
    first steps or with a short ring, the oldest that lies before it at all. One that would have to
    be fetched only where nothing else lies before it.

    The record of step f shows the weights after f − 1 updates, so that the state after f − 1 is
    the last one without a sign.
    """
    before = sorted((state for state in good if state.step < first_step), key=_by_step)
    before = [state for state in before if state.where != "remote"] or before
    well_before = [state for state in before if state.step <= first_step - margin_steps]
    return well_before[-1] if well_before else next(iter(before), None)


def range_to_skip(
    situation: Situation, sign: Sign, to: Safe, limits: RecoverSection, sizes: Sizes
) -> tuple[int, int] | None:
    """Blocks to pass over: a quarter of the range before the first sign, as PaLM's began before
    its spikes, and the rest from there on; never before the state gone back to. A share that is
    nearly spent makes it shorter; None if it does not even hold the batch of the first sign, or if
    that is passed over already.
    """
    length = sizes.skip * situation.blocks_per_step
    begin = max(to.draw, sign.first_draw - length // 4)
    return _within_budget(situation, sign, limits, begin, begin + length)


def batch_to_skip(
    situation: Situation, sign: Sign, to: Safe, limits: RecoverSection
) -> tuple[int, int] | None:
    """The batch of the first sign and the one before: a loss is high because of the batch it is
    measured on, or because of what the batch before did to the weights.
    """
    begin = max(to.draw, sign.first_draw - situation.blocks_per_step)
    return _within_budget(situation, sign, limits, begin, 0)


def same_data(ledger: LedgerState, sign: Sign, blocks_per_step: int) -> bool:
    """Whether a recovery went back over this data before, and it was read again."""
    near = _SAME_DATA_STEPS * blocks_per_step
    return any(
        recovery.to_step is not None and abs(recovery.first_draw - sign.first_draw) <= near
        for recovery in ledger.recoveries
    )


def _by_step(state: Safe) -> tuple[int, bool]:
    return state.step, state.where == "memory"  # the faster of two at the same step is newest


def _within_budget(
    situation: Situation, sign: Sign, limits: RecoverSection, begin: int, end: int
) -> tuple[int, int] | None:
    least = sign.first_draw + situation.blocks_per_step
    end = max(least, min(end, begin + blocks_left(situation, limits)))
    fits = end - begin <= blocks_left(situation, limits)
    known = any(first <= sign.first_draw < last for first, last in situation.ledger.skips)
    return (begin, end) if begin <= sign.first_draw and fits and not known else None
