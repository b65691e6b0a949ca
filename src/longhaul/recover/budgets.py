"""How much has been spent on recoveries, and how far up its ladder a cause has climbed.

Everything is a fold over the ledger, which neither a rollback nor a crash forgets.

Enters: the ledger's recoveries and skips, the step. Leaves: counts, and the reason why nothing
more may be spent. Never knows: actions to come.
"""

from collections.abc import Collection, Sequence

from longhaul.config.recover import RecoverSection
from longhaul.logbook.ledger import LedgerState, Recovery
from longhaul.recover.plan import WHO, Situation

FREE = frozenset({"mask", "report", "raise-lr", "fallback", "stop"})
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


def fallbacks_taken(ledger: LedgerState) -> int:
    """How many entries of `[[fallback]]` were forked to."""
    return sum(bool(recovery.fallback) for recovery in own_recoveries(ledger))


def recent(
    recoveries: Sequence[Recovery], cause: str, step: int, within_steps: int
) -> list[Recovery]:
    """Those for the same cause of the last steps. What was decided at a later step than this one
    was followed by a rollback, and is recent.
    """
    return [r for r in recoveries if r.cause == cause and step - r.step <= within_steps]


def spent(situation: Situation, limits: RecoverSection, cooldown_steps: int) -> str:
    """Why no further recovery may be paid for; empty if one may."""
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


def blocks_left(situation: Situation, limits: RecoverSection) -> int:
    """Blocks of data that may still be passed over. Skips that people asked for count too: the
    data is as much unseen. Where only hours limit a run, its data is what it has read so far.
    """
    total = situation.settings.total_steps()
    data = situation.draw if total is None else total * situation.blocks_per_step
    skipped = sum(end - begin for begin, end in situation.ledger.skips)
    return max(int(limits.max_skipped_share * data) - skipped, 0)
