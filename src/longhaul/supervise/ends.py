"""How an attempt ended: by exit codes, by what ranks left behind, and in words for people."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from longhaul.core.errors import ExitCode
from longhaul.core.units import Bytes, Seconds, short_seconds
from longhaul.supervise.causes import Cause, Signature, first_cause, last_message
from longhaul.supervise.ranks.group import Group
from longhaul.supervise.ranks.watchdog import Verdict, who_did_not_arrive
from longhaul.supervise.restart import Plan

_WELL = (ExitCode.FINISHED, ExitCode.START_AGAIN, ExitCode.INTERRUPTED)
"""Codes with which a worker ends on purpose, its state saved."""
_TOLD = (ExitCode.RECIPE_WRONG, ExitCode.DATA_WRONG, ExitCode.NEEDS_PERSON)
"""A worker has said what a person must do: to start it again changes nothing."""
_UNHEARD = (-signal.SIGINT, -signal.SIGTERM)
"""A worker that was still importing when it was asked to stop had no handler yet, and no state."""


@dataclass(frozen=True, slots=True)
class End:
    """How a group ended."""

    exit_code: ExitCode | None = None
    """The run's exit code; None if it failed, or hangs."""
    rank: int = 0
    """Whose exit code it is."""
    hang: Verdict | None = None
    cause: Cause | None = None
    """What it was ended for, while its ranks still ran."""


def group_end(exit_codes: Sequence[int | None], stop: ExitCode | None) -> End | None:
    """How a group has ended; None while it runs, or while others follow one that ended well.

    One rank that says what is wrong speaks for all: the others die of its death. `exit_codes`: by
    rank; None for those that run. `stop`: what was asked for.
    """
    given = [code for code in exit_codes if code is not None]
    ended = [stop if stop is not None and code in _UNHEARD else code for code in given]
    for rank, code in enumerate(exit_codes):
        if code in _TOLD:
            return End(ExitCode(code), rank)
    if any(code not in _WELL for code in ended):
        return End()
    if len(ended) < len(exit_codes):
        return None
    # Rank 0 keeps the run log: if it has finished, the run is finished.
    return End(ExitCode(ended[0]))


_CULPRIT_WITHIN_S: Seconds = 3.0
"""Ranks that die of another one's death may be gone before it; its end is waited for so long."""
_CULPRIT_LOOK_S: Seconds = 0.02


def cause_of_death(
    group: Group, signatures: Sequence[Signature], kernel: Callable[[], Sequence[str]]
) -> Cause:
    """The cause of the first death that was no consequence of another one; `kernel` is by rank."""
    deadline = time.monotonic() + _CULPRIT_WITHIN_S
    while True:
        group.pass_on()  # last words may still be on their way into rank 0's log
        deaths = group.deaths(time.monotonic())
        cause = first_cause(deaths, signatures)
        if not cause.consequence or not group.running or time.monotonic() > deadline:
            break
        time.sleep(_CULPRIT_LOOK_S)
    return first_cause(group.deaths(time.monotonic(), kernel()), signatures)


def cause_of_hang(group: Group, verdict: Verdict) -> Cause:
    """A hang, with the rank that did not arrive, if one can be told from the others."""
    waiting = group.stacks()
    missing, how = who_did_not_arrive(group.look(), waiting)
    said = f"{verdict.reason}: {how}"
    return Cause("hang", said, "restart", missing[0] if missing else None, False, said)


def in_words(cause: Cause) -> str:
    """For people."""
    who = f"rank {cause.rank}: " if cause.rank is not None else ""
    return f"{who}{cause.name} ({', '.join(filter(None, (cause.words, cause.meaning)))})"


Say = Callable[[str], None]
_LAST_MESSAGE: Bytes = 16_384


def ended(
    cause: Cause, plan: Plan, rank: int | None, codes: Sequence[int | None], step: int | None
) -> dict[str, Any]:
    """What the journal says of a failure and what follows it."""
    return {
        "reason": in_words(cause), "cause": cause.name, "remedy": cause.remedy, "rank": rank,
        "exit_codes": list(codes), "said": cause.message, "reached": step,
        "poisoned": plan.poison, "follows": plan.reason,
    }  # fmt: skip


def tell_failure(say: Say, group: Group, cause: Cause, plan: Plan, times: int) -> None:
    """What has failed, for the how manyth time, and what follows."""
    say(f"WARNING: {in_words(cause)}" + (f" (time {times} in this run)" * (times > 1)))
    write_last_message(say, group, cause.rank)
    for worker in group.stuck:
        say(f"  rank {worker.rank} (process {worker.pid}) does not end on SIGKILL, as the kernel "
            "does not let it go; what it holds, such as a device, stays taken")  # fmt: skip
    if plan.restart:
        wait = f" in {short_seconds(plan.wait_s)}" if plan.wait_s else ""
        why = f": {plan.reason}" if plan.poison is not None else ""
        say(f"  starting again{wait}{why}")
    else:
        say(f"  stopping: {plan.reason}\n  → look into {group.folder.workers}")


def tell_replica_lost(say: Say, cause: Cause, plan: Plan, others: int) -> None:
    """Which replica has died, while so many others train on."""
    comes = f"it comes back in {short_seconds(plan.wait_s)}" if plan.wait_s else "it comes back"
    follows = comes if plan.restart else f"it stays away: {plan.reason}"
    name = f"replica {cause.rank}"
    say(f"WARNING: {name}: {in_words(cause)}; {others} train on, {follows}")
    if cause.message and cause.name != "hang":  # that is the watchdog's word
        say(f"  {name} said: {cause.message}")


def write_last_message(say: Say, group: Group, rank: int | None) -> None:
    """What rank 0 writes is seen anyway; the other ranks write into their logs."""
    if not rank:
        return
    worker = group.workers[rank]
    if said := last_message(worker.log_end(_LAST_MESSAGE)):
        say(f"  rank {rank} said: {said}")
    say(f"  its log is {worker.log}")


def what_is_lost(reached: int | None, saved: list[int]) -> str:
    """After a second interrupt."""
    where = f"at step {reached}" if reached is not None else "before its first step"
    kept = f"the newest checkpoint is that of step {max(saved)}" if saved else "there is none"
    return f"SIGINT again: the run ends at once {where}, without a checkpoint; {kept}"
