"""A soak: faults at random moments of a run that trains, until its time is over.

The next fault is timed from the first new step after the one before it, so that a run which takes
long to recover is not hit while it does. Names, ranks and pauses follow from the seed; the steps
that they meet follow from the machine.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from longhaul.core.clocks import Clock
from longhaul.core.records import StepRecord
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_last
from longhaul.run.drill.fault import KINDS, STORE_FAULTS, Fault, parse_fault
from longhaul.run.drill.laid import lay, read_done

_BETWEEN_STEPS = 4
"""New steps between two faults at least: failures of one cause with fewer between them count as no
progress (`supervise/restart.py`), and a run is right to give up then."""
_LATEST_S: Seconds = 1.0
"""Signals come up to so long after a step has begun: in the middle of whatever is done then."""
_SETTLED_S: Seconds = 1.0
"""A step that is complete so long after a fault was done is one that came after it."""
_LEAST_LEFT, _SHARE_LEFT = 8, 0.05
"""Steps left alone at the end: the run is further than its journal, and goes on meanwhile."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What is injected next, and how long after the last new step began."""

    pause_s: Seconds
    faults: tuple[Fault, ...]
    """At step 0: the step is filled in when it is due."""


def kinds_for(has_remote: bool) -> tuple[str, ...]:
    """Kinds of a soak that must end in the bytes of its baseline."""
    return tuple(
        name
        for name, kind in KINDS.items()
        if kind.soaked and kind.harm != "numbers" and (has_remote or name not in STORE_FAULTS)
    )


def injections(
    seed: int, mtbf_s: Seconds, kinds: Sequence[str], processes: int
) -> Iterator[Injection]:
    """Without end, the same for a seed; pauses of mean `mtbf_s` are distributed exponentially."""
    chance = random.Random(seed)
    while True:
        pause_s = chance.expovariate(1 / mtbf_s)
        kind, rank = chance.choice(list(kinds)), chance.randrange(processes)
        late = chance.uniform(0, _LATEST_S)
        # The tiers and the newest checkpoint are rank 0's business.
        if KINDS[kind].harm == "storage" and kind != "torn-write":
            rank = 0
        strength = f"{late:.2f}" if KINDS[kind].is_signal else ""
        fault = Fault(kind, 0, rank=rank, strength=strength)
        # A wrong byte shows when it is read: at the next restart.
        found_out = (Fault("kill", 0, rank=rank),) if kind == "bitflip-file" else ()
        yield Injection(pause_s, (fault, *found_out))


class Soak:
    """Injects the faults `ahead` into a run of `steps` steps while it trains; call it often.

    None comes later than `lasting_s` after the first step, nor so near to the run's end that it
    might not act any more.
    """

    def __init__(
        self,
        folder: RunFolder,
        ahead: Iterator[Injection],
        clock: Clock,
        lasting_s: Seconds,
        steps: int,
    ) -> None:
        self._folder, self._ahead, self._clock = folder, ahead, clock
        self._lasting_s = lasting_s
        self._last = steps - max(_LEAST_LEFT, round(_SHARE_LEFT * steps))
        self._next = next(ahead)
        self._reached = 0
        """The furthest step that was made before the last fault had its effect."""
        self._new: tuple[Seconds, int] | None = None
        """When the first new step after the last fault was seen, and which; None: not yet."""
        self._until: Seconds | None = None
        self.laid: list[Fault] = []

    @property
    def over(self) -> bool:
        """Its time is over."""
        return self._until is not None and self._clock.monotonic() >= self._until

    def __call__(self) -> None:
        """Inject the next fault if its time has come."""
        last = [r for r in read_last(self._folder, 1, events=False) if isinstance(r, StepRecord)]
        if not last or self.over or last[0].step > self._last:
            return
        step, now = last[0].step, self._clock.monotonic()
        if self._until is None:
            self._until = now + self._lasting_s
        if self._new is None:
            if last[0].time <= self._settled():
                self._reached = max(self._reached, step)
            elif step > self._reached:
                self._new = now, step
            return
        seen, first = self._new
        if now - seen >= self._next.pause_s and step >= first + _BETWEEN_STEPS:
            self.laid += [replace(fault, first=step + 1) for fault in self._next.faults]
            lay(self._folder, self.laid)
            self._new, self._reached = None, step
            self._next = next(self._ahead)

    def _settled(self) -> Seconds:
        """Unix time by which the last fault has had its effect; never, while it has not come."""
        done = read_done(self._folder)
        if len(done) < len(self.laid):
            return math.inf
        faults = [(item.time, parse_fault(item.fault)) for item in done]
        late = [time + (fault.value if fault.known.is_signal else 0.0) for time, fault in faults]
        return max(late) + _SETTLED_S if late else 0.0
