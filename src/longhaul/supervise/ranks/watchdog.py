"""Whether ranks still do something, and if not, who did not arrive; pure, but for `Watch`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from longhaul.config.recover import SuperviseSection
from longhaul.core.files import write_json
from longhaul.core.strict import read_object
from longhaul.core.units import Bytes, Seconds, short_seconds
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.ranks.progress import PHASES, Phase, Progress

_LEARNED_TIMES = 10
"""A deadline is this many times the longest silence seen lately, if that is more."""
_REMEMBERED_STEPS = 64
"""Steps whose silences count as lately, in each phase."""
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
    """How long healthy ranks have been silent lately, from one look at them to the next.

    A silence is what a deadline limits: the time between two signs of life of a rank. It belongs to
    the phase of the sign that it begins with. On a CPU it is a micro-batch; on a device, of which
    the host runs ahead and then waits, a whole step.
    """

    silences: Mapping[Phase, Mapping[int, Seconds]] = field(default_factory=dict)
    """Phase → step → longest silence there."""
    last: Mapping[int, Progress] = field(default_factory=dict)
    """Rank → its newest sign."""
    quiet: Mapping[int, Seconds] = field(default_factory=dict)
    """Rank → age of that sign when it was looked at last. It is learned when the next sign comes:
    a hang must not lengthen its own deadline."""

    def longest(self, phase: Phase) -> Seconds:
        """Longest silence lately; 0 before the first."""
        return max(self.silences.get(phase, {}).values(), default=0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the watchdog thinks of a group."""

    hung: bool
    reason: str
    missing: tuple[int, ...] = ()
    """Ranks that did not arrive; empty if none can be told from the others."""
    deadline_s: Seconds | None = None
    """None: there is none for what the ranks do."""


def learn(learned: Learned, ranks: Iterable[Rank], now: Seconds) -> Learned:
    """What is known after another look at the ranks, `now` in monotonic time."""
    silences, last, quiet = dict(learned.silences), dict(learned.last), dict(learned.quiet)
    for rank in ranks:
        sign, before = rank.progress, learned.last.get(rank.rank)
        if sign is None:
            continue
        if before is not None and sign.sign > before.sign:
            # Many signs may lie between two looks: no silence was longer than what a look saw of
            # it, but for the time between two looks.
            mean = (sign.monotonic - before.monotonic) / (sign.sign - before.sign)
            took = max(mean, quiet.get(rank.rank, 0.0))
            of_phase = dict(silences.get(before.phase, {}))
            of_phase[before.step] = max(took, of_phase.get(before.step, 0.0))
            if len(of_phase) > _REMEMBERED_STEPS:
                del of_phase[next(iter(of_phase))]
            silences[before.phase] = of_phase
        last[rank.rank], quiet[rank.rank] = sign, now - sign.monotonic
    return Learned(silences, last, quiet)


def doubted(learned: Learned, ranks: Sequence[Rank], verdict: Verdict) -> Learned:
    """What is known after a group was found to hang: it may just have become slower, as at a stage
    of longer sequences, and would be found to hang at every attempt. The next deadline is twice as
    long; a rank that really hangs is found all the same.
    """
    if verdict.deadline_s is None or verdict.missing:  # a process that is stopped is not slow
        return learned
    seconds = 2 * verdict.deadline_s / _LEARNED_TIMES
    silences = dict(learned.silences)
    for said in (rank.progress for rank in ranks):
        phase: Phase = said.phase if said and begun(ranks) else "start-up"
        silences[phase] = {**silences.get(phase, {}), said.step if said else 0: seconds}
    return replace(learned, silences=silences)


def begun(ranks: Iterable[Rank]) -> bool:
    """Whether a rank has made a record in this attempt."""
    return any(rank.progress and rank.progress.step for rank in ranks)


def deadline(phase: Phase, learned: Learned, settings: SuperviseSection) -> Seconds | None:
    """How long a group may be silent in a phase; None: for ever."""
    if phase not in _DEADLINE_OF:
        return None
    asked = settings.deadlines()
    measured = _LEARNED_TIMES * learned.longest(phase)
    # A batch of an evaluation is like one of a step. What gives few signs may take as long as a
    # hundred of them: replays of steps, before an action, count as what they interrupt.
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
    """Whether a group of ranks hangs; times are monotonic, `began` that of the ranks' start.

    Until the attempt's first record nobody knows how long a step takes, and a host that runs ahead
    of its device has given all of its signs at once: the deadline of a start-up holds.

    Ranks wait for each other, so one that hangs silences all. The group counts as hung when its
    *newest* sign of life is older than the deadline of what it was doing; who is to blame is told
    from what each rank had reached, the state of its process, and where its stack stands.
    """
    newest = max([began, *(rank.progress.monotonic for rank in ranks if rank.progress)])
    quiet_s = now - newest
    phases: list[Phase] = [rank.progress.phase if rank.progress else "start-up" for rank in ranks]
    deadlines = [deadline(phase, learned, settings) for phase in phases]
    if not begun(ranks):
        deadlines.append(deadline("start-up", learned, settings))
    stopped = tuple(rank.rank for rank in ranks if rank.state == "stopped")
    if stopped:
        # It gives no sign until somebody continues it, whatever phase it is in.
        deadlines = [deadline("step", learned, settings)]
    if any(limit is None for limit in deadlines):
        return Verdict(False, "text is being prepared, which has no deadline")
    # The most patient of them: others wait for a rank that evaluates or saves alone.
    limit = max(limit for limit in deadlines if limit is not None)
    if quiet_s <= limit:
        return Verdict(False, "signs of life are recent", deadline_s=limit)
    doing = ", ".join(sorted(set(phases)))
    reason = (
        f"no rank gave a sign of life for {short_seconds(quiet_s)} in phase {doing}, "
        f"which may take {short_seconds(limit)}"
    )
    return Verdict(True, reason, stopped, limit)


def who_did_not_arrive(
    ranks: Sequence[Rank], waiting: Mapping[int, str | None]
) -> tuple[tuple[int, ...], str]:
    """The ranks that the others wait for, none if nothing tells them apart, and how one knows."""
    if stopped := [rank for rank in ranks if rank.state == "stopped"]:
        return _blamed(stopped, "stopped by a signal")
    if stuck := [rank for rank in ranks if rank.state == "in the kernel"]:
        return _blamed(stuck, "in a system call that does not return")
    if len(ranks) == 1:
        return _blamed(ranks, "alone")
    steps = {rank.rank: rank.progress.step if rank.progress else -1 for rank in ranks}
    furthest = max(steps.values())
    if behind := [rank for rank in ranks if steps[rank.rank] < furthest]:
        at = ", ".join(str(steps[rank.rank]) for rank in behind)
        return _blamed(behind, f"at step {at}, the others at {furthest}")
    silent = [rank for rank in ranks if waiting.get(rank.rank) is None]
    if silent and len(silent) < len(ranks):
        return _blamed(silent, "unable to say where its stack stands")
    busy = [rank for rank in ranks if not waiting.get(rank.rank)]
    if busy and len(busy) < len(ranks):
        where = next(place for place in waiting.values() if place)
        return _blamed(busy, f"elsewhere while the others wait in {where}")
    return (), "nothing tells the ranks apart; their stacks are in workers/"


def _blamed(ranks: Sequence[Rank], how: str) -> tuple[tuple[int, ...], str]:
    names = " and ".join(f"rank {rank.rank} on {rank.host}" for rank in ranks)
    numbers = tuple(rank.rank for rank in ranks)
    return numbers, f"{names} {'is' if len(ranks) == 1 else 'are'} {how}"


_FORMAT = 1
_WRITE_BEYOND = 1.25
"""A silence longer than the kept one by this factor is written at once: nobody may do it later."""
_MOST_BYTES: Bytes = 4096
_SHORT_S: Seconds = 0.5
"""No deadline grows from it at usual settings; it is not worth a write."""


class Watch:
    """Looks at the ranks of one run, from attempt to attempt (`blink` between them)."""

    def __init__(self, folder: RunFolder, settings: SuperviseSection) -> None:
        self._path = silences_path(folder)
        self._settings = settings
        self._kept = read_silences(self._path)
        # What an earlier attempt had learned holds until as many new steps have been seen.
        self._learned = Learned({phase: {0: longest} for phase, longest in self._kept.items()})
        self._began: Seconds = 0.0

    def look(self, now: Seconds, ranks: Sequence[Rank]) -> Verdict:
        """Learn from how the ranks look now, and judge."""
        self._learned = learn(self._learned, ranks, now)
        longest = self._longest()
        if any(longest[p] > _WRITE_BEYOND * self._kept.get(p, _SHORT_S) for p in longest):
            self._keep(longest)
        verdict = judge(now, self._began, ranks, self._learned, self._settings)
        if verdict.hung:
            self._learned = doubted(self._learned, ranks, verdict)
            self._keep(self._longest())
        return verdict

    def blink(self, now: Seconds) -> None:
        """Nobody could look for a while, and ranks could give no signs: begin anew, `now`."""
        self._learned, self._began = Learned(self._learned.silences), now

    def close(self) -> None:
        """Keep what holds now, of which some may be less than before."""
        if (longest := self._longest()) != self._kept:
            self._keep(longest)

    def _longest(self) -> dict[Phase, Seconds]:
        seen = {phase: self._learned.longest(phase) for phase in self._learned.silences}
        return {p: round(s, 3) for p, s in seen.items() if p != "prepare" and s > _SHORT_S}

    def _keep(self, longest: Mapping[Phase, Seconds]) -> None:
        self._kept = dict(longest)
        with suppress(OSError):  # no run ends for want of it
            write_json(self._path, {"format": _FORMAT, "longest_s": longest})


def silences_path(folder: RunFolder) -> Path:
    """Where the longest silences of healthy ranks are kept."""
    return folder.workers / "silences.json"


def read_silences(path: Path) -> dict[Phase, Seconds]:
    """Phase → longest silence as it was kept; nothing of what is not as it was written."""
    body: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        body = read_object(path, _MOST_BYTES)
    seconds = body.get("longest_s")
    if not isinstance(seconds, dict) or body.get("format") != _FORMAT:
        return {}
    return {
        phase: float(seconds[phase])
        for phase in PHASES
        if isinstance(seconds.get(phase), int | float) and 0 < seconds[phase] < math.inf
    }
