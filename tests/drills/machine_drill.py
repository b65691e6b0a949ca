"""What a drill of the incident book's machine rows is, and what its journal says of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from drills.stage import STEPS, Stage
from drills.story import Timeline
from longhaul.core.records import Decision, Event
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder

Check = Callable[[Timeline], Iterator[str]]
Played = tuple[tuple[int, ...], Check]
"""Exit codes of every start, and what else the story must hold."""
NO_RESTARTS = ("supervise.restarts_per_day=0",)


def failures(story: Timeline) -> list[Event]:
    """The end of every attempt that failed, as the supervisor told it."""
    return [event for event in story.events("attempt-ended") if "cause" in event.data]


def began(story: Timeline) -> list[Event]:
    """The start of every attempt that got as far as training."""
    return story.events("attempt-started")


def poisoned(story: Timeline) -> list[int]:
    """Checkpoints that were not to be used again."""
    return [
        record.data["checkpoint"]
        for record in story.records
        if isinstance(record, Decision) and record.data.get("health") == "poisoned"
    ]


def usual_tale(story: Timeline) -> str:
    """Cause, rank and step of each failure, and where it went on."""
    starts, words = {event.attempt: event for event in began(story)}, []
    for event in failures(story):
        rank = f" rank {event.data['rank']}" if event.data["rank"] is not None else ""
        follows = starts.get(event.attempt + 1)
        goes_on = f"from {follows.step}" if follows else "stop"
        reached = event.data["reached"] or 0
        cause, _, text = event.data["cause"].partition(": ")
        what = "unknown error" if text and cause == "unknown" else event.data["cause"]
        words.append(f"{what}{rank} at {reached} → {goes_on}")
    return "; ".join(words) or "no failure"


def nothing_more(story: Timeline) -> Iterator[str]:
    """No check beyond those that every drill is asked for."""
    return iter(())


def prepare(stage: Stage, drill: "MachineDrill", *more: str) -> RunFolder:
    """Make its run, with more settings than its own."""
    options = (*drill.options, *drill.world, *more)
    return stage.set_up(options, drill.processes, drill.faults, drill.pace_s)


def once(stage: Stage, drill: "MachineDrill") -> Played:
    """Start it with its faults, and let it end by itself."""
    prepare(stage, drill)
    return (stage.end(),), drill.check


def started_again(stage: Stage, drill: "MachineDrill") -> Played:
    """The same, and started again by hand until it is finished, as often as the drill expects."""
    prepare(stage, drill)
    codes: list[int] = []
    while len(codes) < len(drill.codes) and (not codes or codes[-1] != 0):
        codes.append(stage.end())
    return tuple(codes), drill.check


@dataclass(frozen=True, kw_only=True)
class MachineDrill:
    """One row of the incident book as a run."""

    name: str
    happened: str
    """In a table."""
    faults: tuple[str, ...] = ()
    """As on the command line."""
    options: tuple[str, ...] = ()
    """On top of `stage.BASE`."""
    world: tuple[str, ...] = ()
    """More settings, that the same run left alone does without: nodes, stores."""
    processes: int = 2
    pace_s: Seconds = 0.0
    """Each step takes so much longer: what comes from outside needs its time."""
    failures: tuple[tuple[str, int | None], ...] = ()
    """Cause and rank of each attempt that fails, in order; there may be no others."""
    codes: tuple[int, ...] = (0,)
    """Exit codes, of every start."""
    steps: int = STEPS
    """At which it ends, where it ends well."""
    same: Literal["bits", "kept bits", "losses"] = "bits"
    """As the same run left alone: the very bytes of its last state and of every loss; or only of
    those losses that were kept; or, where another layout adds up in another order, every loss but
    for rounding."""
    from_newest: bool = True
    """Each attempt goes on from the newest sound checkpoint that there was."""
    blinded: tuple[str, ...] = NO_RESTARTS
    """Settings that take from the run what it ought to answer with: the drill must fail."""
    check: Check = nothing_more
    """What else its journal must say."""
    tale: Callable[[Timeline], str] = usual_tale
    """The same, for people, in a line."""
    play: "Callable[[Stage, MachineDrill], Played]" = once
    """What is done."""
