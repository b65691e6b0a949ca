"""Who trains together with a trainer, and what passes between them at step boundaries.

What follows from settings and position alone all ranks do without a word. For the rest the others
listen at every boundary: rank 0 gives its orders, and then the word to go on, which is reduced over
all ranks, so that rank 0 also learns what signals asked of any of them. Without orders it is the
only collective of a boundary: eight bytes on the CPU, 0.3 ms for 2 ranks on 2 cores and 1.1 ms for
4. Replicas have coordinators of their own (`elastic.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.records import Event, StepRecord
from longhaul.core.signals import StopRequest
from longhaul.train.orders import Order
from longhaul.train.parts import Parts
from longhaul.train.rank_comparison import RankComparison

NO_REQUEST = 0
_ORDER = 1 << 20
"""The word for "an order follows"; above every stop request."""


class OneProcessOnly(LonghaulError):
    """Something that many processes cannot do together yet."""


class Ended(Exception):
    """Rank 0 has ended, with this exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class StopRequests:
    """What signals have asked for, as numbers; the highest one wins."""

    own: Callable[[], int]
    """What this process was asked; `NO_REQUEST` if nothing."""
    hear: Callable[[int], None]
    """Takes what any process was asked."""


def stop_requests_of(stop_request: StopRequest) -> StopRequests:
    """What signals ask of this process, as a number among ranks."""

    def hear(word: int) -> None:
        if word != NO_REQUEST and stop_request.exit_code is None:
            stop_request.exit_code = ExitCode(word)

    return StopRequests(lambda: int(stop_request.exit_code or NO_REQUEST), hear)


class Coordinator:
    """Of one process, which has nobody to coordinate with; the others build on it."""

    keeps_run = True
    """Whether this process has a part in evaluations, saves and snapshots."""

    @property
    def comparison(self) -> RankComparison | None:
        """What ranks are compared in; None where there is one."""
        return None

    @property
    def at_boundary(self) -> bool:
        """Whether decisions may be applied now: no step is under way on any rank."""
        return True

    def begin(self) -> None:
        """All begin to make steps."""

    def boundary(self, records: Iterable[StepRecord | Event]) -> Iterator[StepRecord | Event]:
        """The records that this process is given, and then what others order."""
        yield from records

    def end(self) -> None:
        """All have made their last step."""

    def order(self, order: Order) -> None:
        """Let the others do what this process will do; a ValueError if they are under way."""

    def order_unless_due(self, order: Order) -> None:
        """The same of what all ranks do by themselves where it is due, without listening."""
        if self.at_boundary:
            self.order(order)

    def completed(self, record: StepRecord) -> None:
        """A step is complete."""

    def state_changed(self) -> None:
        """A decision or a rollback has changed the training state."""

    def copies_on_host(self, copies: int) -> int:
        """So many copies of every process's training state on this host, or `OneProcessOnly`."""
        return copies


class _AmongRanks(Coordinator):
    """What rank 0 and the others have in common."""

    def __init__(self, parts: Parts, stop_requests: StopRequests) -> None:
        assert parts.ranks is not None
        self._control = parts.ranks.control
        self._stop_requests = stop_requests
        self._comparison = RankComparison(parts)

    @property
    def comparison(self) -> RankComparison:
        """What ranks are compared in."""
        return self._comparison

    def copies_on_host(self, copies: int) -> int:
        """All ranks of this node lend theirs at once."""
        return copies * self._comparison.ranks_here


class RankZero(_AmongRanks):
    """Of rank 0: what its trainer is asked at a boundary, it orders of all ranks; but
    `Trainer.enter` is its own affair, as segments are written in its records alone.
    """

    def __init__(self, parts: Parts, stop_requests: StopRequests) -> None:
        super().__init__(parts, stop_requests)
        self._listened_to = 1  # until the first step, and again after the last one

    @property
    def at_boundary(self) -> bool:
        """Whether the other ranks listen."""
        return self._listened_to > 0

    def begin(self) -> None:
        """The others begin with this one."""
        self._go_on()

    def boundary(self, records: Iterable[StepRecord | Event]) -> Iterator[StepRecord | Event]:
        """The others listen until all records are taken."""
        self._listened_to += 1
        yield from records
        self._go_on()

    def end(self) -> None:
        """The others listen until they hear how this one ends."""
        self._listened_to += 1

    def order(self, order: Order) -> None:
        """As `Coordinator.order`."""
        if not self.at_boundary:
            raise ValueError(f"{order}: the other ranks are under way, not at a step boundary")
        self._control.highest(_ORDER)
        self._control.share(order)

    def _go_on(self) -> None:
        self._listened_to -= 1
        self._stop_requests.hear(self._control.highest(self._stop_requests.own()))


class Follower(_AmongRanks):
    """Of every other rank: its records are nobody's, and it does what rank 0 orders; `reached` is
    given how many updates are complete.
    """

    def __init__(
        self,
        parts: Parts,
        stop_requests: StopRequests,
        carry_out: Callable[[Any], None],
        reached: Callable[[int], None] = lambda step: None,
    ) -> None:
        super().__init__(parts, stop_requests)
        self._carry_out = carry_out
        self._reached = reached

    def begin(self) -> None:
        """What rank 0 decides before its first step."""
        self._listen()

    def boundary(self, records: Iterable[StepRecord | Event]) -> Iterator[StepRecord | Event]:
        """Nobody reads the records; what rank 0 orders is done."""
        for record in records:
            if isinstance(record, StepRecord):  # as rank 0 says it, which writes them down
                self._reached(record.step)
        self._listen()
        yield from ()

    def end(self) -> None:
        """What rank 0 does after its last step, until it has `Ended`."""
        self._listen()
        raise ValueError("rank 0 went on after its last step")

    def _listen(self) -> None:
        """Carry out orders until the word to go on."""
        while self._control.highest(self._stop_requests.own()) == _ORDER:
            self._carry_out(self._control.share())
