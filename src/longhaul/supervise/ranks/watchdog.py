"""Whether ranks still do something, and if not, which of them did not arrive: pure judgement.

Ranks wait for each other, so one that hangs silences all. The group counts as hung when its
*newest* sign of life is older than the deadline of what it was doing; who is to blame is told from
what each rank had reached, the state of its process, and where its stack stands.

Enters: the time, signs of life, learned times, deadlines. Leaves: a verdict with its reason.
Never knows: processes, files, or what is done about a hang.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from longhaul.config.supervise import SuperviseSection
from longhaul.core.units import Seconds, short_seconds
from longhaul.supervise.ranks.progress import Phase, Progress

_LEARNED_TIMES = 10
"""A deadline is this many times the longest duration seen lately, if that is more."""
_REMEMBERED = 64
"""Durations of each phase that count as lately."""
_DEADLINE_OF: dict[Phase, str] = {
    "start-up": "start_up_s",
    "compile": "compile_s",
    "step": "deadline_s",
    "evaluation": "evaluation_s",
    "save": "save_s",
}
"""`prepare` is missing: text takes as long as it takes."""

ProcessState = Literal["running", "stopped", "in the kernel", "gone"]


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank as it looks from outside."""

    rank: int
    host: str
    progress: Progress | None
    """None: it has said nothing yet."""
    state: ProcessState = "running"
    """`stopped`: by a signal or a debugger. `in the kernel`: in a call that no signal interrupts,
    such as a read from a dead file system."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What steps and other phases have taken lately, from one look at the ranks to the next."""

    durations: Mapping[Phase, tuple[Seconds, ...]] = field(default_factory=dict)
    last: Mapping[int, Progress] = field(default_factory=dict)

    def longest(self, phase: Phase) -> Seconds:
        """Longest duration of a step, of a batch of an evaluation, or of any other whole phase,
        lately; 0 before the first.
        """
        return max(self.durations.get(phase, ()), default=0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the watchdog thinks of a group."""

    hung: bool
    reason: str
    missing: tuple[int, ...] = ()
    """Ranks that did not arrive; empty if none can be told from the others."""
    quiet_s: Seconds = 0.0
    """Age of the newest sign of life."""
    deadline_s: Seconds | None = None
    """None: there is none for what the ranks do."""


def learn(learned: Learned, ranks: Iterable[Rank]) -> Learned:
    """What is known after another look at the ranks."""
    durations, last = dict(learned.durations), dict(learned.last)
    for rank in ranks:
        now, before = rank.progress, learned.last.get(rank.rank)
        if now is None:
            continue
        last[rank.rank] = now
        if before is None or now.sign == before.sign:
            continue
        took = now.monotonic - before.monotonic
        if before.phase == "step" and now.step > before.step:
            took /= now.step - before.step
        elif before.phase == now.phase != "evaluation":
            continue
        durations[before.phase] = (*durations.get(before.phase, ()), took)[-_REMEMBERED:]
    return replace(learned, durations=durations, last=last)


def deadline(phase: Phase, learned: Learned, settings: SuperviseSection) -> Seconds | None:
    """How long a group may be silent in a phase; None: for ever."""
    if phase not in _DEADLINE_OF:
        return None
    asked = settings.deadlines()
    measured = _LEARNED_TIMES * learned.longest(phase)
    # Replays of steps, before an action, are booked to what they interrupt and give no signs; a
    # start-up must be allowed a hundred steps of them (recover.diagnose_steps).
    steps = {"step": 0, "evaluation": _LEARNED_TIMES}.get(phase, 20 * _LEARNED_TIMES)
    in_steps = steps * learned.longest("step")
    most = asked["collective_s"]
    return max(asked[_DEADLINE_OF[phase]], min(max(measured, in_steps), most))


def judge(
    now: Seconds,
    began: Seconds,
    ranks: Sequence[Rank],
    learned: Learned,
    settings: SuperviseSection,
) -> Verdict:
    """Whether a group of ranks hangs.

    Args:
        now: monotonic, as progress files are stamped.
        began: when the ranks were started, for those that have said nothing yet.
        ranks: all ranks of the group on this machine.
        learned: from the looks before.
        settings: `[supervise]`.
    """
    newest = max([began, *(rank.progress.monotonic for rank in ranks if rank.progress)])
    quiet_s = now - newest
    phases: list[Phase] = [rank.progress.phase if rank.progress else "start-up" for rank in ranks]
    deadlines = [deadline(phase, learned, settings) for phase in phases]
    stopped = tuple(rank.rank for rank in ranks if rank.state == "stopped")
    if stopped:
        # It gives no sign until somebody continues it, whatever phase it is in.
        deadlines = [deadline("step", learned, settings)]
    if any(limit is None for limit in deadlines):
        return Verdict(False, "text is being prepared, which has no deadline", (), quiet_s)
    # The most patient of them: others wait for a rank that evaluates or saves alone.
    limit = max(limit for limit in deadlines if limit is not None)
    if quiet_s <= limit:
        return Verdict(False, "signs of life are recent", (), quiet_s, limit)
    doing = ", ".join(sorted(set(phases)))
    reason = (
        f"no rank gave a sign of life for {short_seconds(quiet_s)} in phase {doing}, "
        f"which may take {short_seconds(limit)}"
    )
    return Verdict(True, reason, stopped, quiet_s, limit)


def who_did_not_arrive(
    ranks: Sequence[Rank], waiting: Mapping[int, str | None]
) -> tuple[tuple[int, ...], str]:
    """The ranks that the others wait for, and how one knows.

    Args:
        ranks: all of them, hung.
        waiting: rank → where its stack stands if it waits for others there, the empty text if it
            does something else, None if it gave no stack.

    Returns:
        Ranks, none if nothing tells them apart, and a sentence.
    """
    if stopped := [rank for rank in ranks if rank.state == "stopped"]:
        return _named(stopped), f"{_they(stopped)} stopped by a signal"
    if stuck := [rank for rank in ranks if rank.state == "in the kernel"]:
        return _named(stuck), f"{_they(stuck)} in a system call that does not return"
    if len(ranks) == 1:
        return _named(ranks), f"{_they(ranks)} alone"
    steps = {rank.rank: rank.progress.step if rank.progress else -1 for rank in ranks}
    furthest = max(steps.values())
    if behind := [rank for rank in ranks if steps[rank.rank] < furthest]:
        at = ", ".join(str(steps[rank.rank]) for rank in behind)
        return _named(behind), f"{_they(behind)} at step {at}, the others at {furthest}"
    silent = [rank for rank in ranks if waiting.get(rank.rank) is None]
    if silent and len(silent) < len(ranks):
        return _named(silent), f"{_they(silent)} unable to say where its stack stands"
    busy = [rank for rank in ranks if not waiting.get(rank.rank)]
    if busy and len(busy) < len(ranks):
        where = next(place for place in waiting.values() if place)
        return _named(busy), f"{_they(busy)} elsewhere while the others wait in {where}"
    return (), "nothing tells the ranks apart; their stacks are in workers/"


def _named(ranks: Iterable[Rank]) -> tuple[int, ...]:
    return tuple(rank.rank for rank in ranks)


def _they(ranks: Sequence[Rank]) -> str:
    names = " and ".join(f"rank {rank.rank} on {rank.host}" for rank in ranks)
    return f"{names} {'is' if len(ranks) == 1 else 'are'}"
