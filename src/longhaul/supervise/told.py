"""What a supervisor tells people of the ends of attempts.

Enters: causes, plans, workers. Leaves: sentences.
Never knows: how anything was decided.
"""

from collections.abc import Callable

from longhaul.core.units import Bytes, short_seconds
from longhaul.supervise.causes.classify import Cause, last_words
from longhaul.supervise.causes.inquest import in_words
from longhaul.supervise.ranks.group import Group
from longhaul.supervise.restart import Plan

Say = Callable[[str], None]
_LAST_WORDS: Bytes = 16_384


def tell_failure(say: Say, group: Group, cause: Cause, plan: Plan, times: int) -> None:
    """What has failed, for the how manyth time, and what follows."""
    say(f"WARNING: {in_words(cause)}" + (f" (time {times} in this run)" * (times > 1)))
    tell_last_words(say, group, cause.rank)
    for worker in group.stuck:
        say(f"  rank {worker.rank} (process {worker.pid}) does not end on SIGKILL, as the kernel "
            "does not let it go; what it holds, such as a device, stays taken")  # fmt: skip
    if plan.restart:
        wait = f" in {short_seconds(plan.wait_s)}" if plan.wait_s else ""
        why = f": {plan.reason}" if plan.poison is not None else ""
        say(f"  starting again{wait}{why}")
    else:
        say(f"  stopping: {plan.reason}\n  → look into {group.folder.workers}")


def tell_last_words(say: Say, group: Group, rank: int | None) -> None:
    """What rank 0 writes is seen anyway; the other ranks write into their logs."""
    if not rank:
        return
    worker = group.workers[rank]
    if said := last_words(worker.log_end(_LAST_WORDS)):
        say(f"  rank {rank} said: {said}")
    say(f"  its log is {worker.log}")


def no_world(why: str) -> str:
    """That the run ends for want of nodes."""
    return (
        f"  stopping: no nodes to go on with: {why}\n  → repair nodes, release those that are "
        "cordoned (`longhaul nodes`), or name others under [[supervise.node]] (docs/supervise.md)"
    )


def what_is_lost(reached: int | None, saved: list[int]) -> str:
    """After a second interrupt."""
    where = f"at step {reached}" if reached is not None else "before its first step"
    kept = f"the newest checkpoint is that of step {max(saved)}" if saved else "there is none"
    return f"SIGINT again: the run ends at once {where}, without a checkpoint; {kept}"
