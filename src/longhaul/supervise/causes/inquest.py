"""Why an attempt ended: the cause, from what its workers left behind.

Enters: a group that has failed or hangs. Leaves: a cause.
Never knows: what follows from it (`restart.py`, `answer.py`).
"""

import time
from collections.abc import Callable, Sequence

from longhaul.core.units import Seconds
from longhaul.supervise.causes.classify import Cause, Signature, first_cause
from longhaul.supervise.ranks.group import Group
from longhaul.supervise.ranks.watchdog import Verdict, who_did_not_arrive

_CULPRIT_WITHIN_S: Seconds = 3.0
"""Ranks that die of another one's death may be gone before it; its end is waited for so long."""
_CULPRIT_LOOK_S: Seconds = 0.02


def cause_of_death(
    group: Group,
    signatures: Sequence[Signature],
    device: str,
    kernel: Callable[[], Sequence[str]],
) -> Cause:
    """The cause of the first death that was no consequence of another one.

    Args:
        group: of which a rank has ended.
        signatures: in the order to ask them.
        device: the device's name.
        kernel: by rank, its kernel's messages since the attempt began.
    """
    deadline = time.monotonic() + _CULPRIT_WITHIN_S
    while True:
        group.pass_on()  # last words may still be on their way into rank 0's log
        deaths = group.deaths(time.monotonic())
        cause = first_cause(deaths, signatures, device)
        if not cause.consequence or not group.running or time.monotonic() > deadline:
            break
        time.sleep(_CULPRIT_LOOK_S)
    return first_cause(group.deaths(time.monotonic(), kernel()), signatures, device)


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
