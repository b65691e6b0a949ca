"""Who trains together with a trainer, and what passes between them at step boundaries.

What follows from settings and position alone all ranks do without a word. For the rest the others
listen at every boundary: rank 0 gives its orders, and then the word to go on, which is reduced over
all ranks, so that rank 0 also learns what signals asked of any of them. Without orders it is the
only collective of a boundary: eight bytes on the CPU, 0.3 ms for 2 ranks on 2 cores and 1.1 ms for
4.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.records import Event, StepRecord
from longhaul.core.signals import StopRequest
from longhaul.train.orders import Order
from longhaul.train.parts import Parts
from longhaul.train.rank_comparison import RankComparison

if TYPE_CHECKING:
    from longhaul.train.elastic import Place

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


class Coordinator:
    """Of one process, which has nobody to coordinate with; the others build on it.

    With a `place` among replicas, what this one is told the others have by its state; but a replica
    that does not keep the run only makes steps.
    """

    comparison: RankComparison | None = None
    """What ranks are compared in; None where there is one."""

    def __init__(self, place: "Place | None" = None, keeps_run: bool = True) -> None:
        self.keeps_run = keeps_run
        """Whether this process has a part in evaluations, saves and snapshots."""
        self._place = place

    @property
    def at_boundary(self) -> bool:
        """Whether decisions may be applied now: no step is under way on any rank of this replica;
        other replicas never wait for this one.
        """
        return True

    def begin(self) -> None:
        """All begin to make steps; of a leader that was away, replicas go on from its ledger."""
        self.state_changed()

    def boundary(self, records: Iterable[StepRecord | Event]) -> Iterator[StepRecord | Event]:
        """The records that this process is given, and then what others order."""
        yield from records

    def end(self) -> None:
        """All have made their last step."""

    def order(self, order: Order) -> None:
        """Let the others do what this process will do; a ValueError if they are under way."""

    def order_unless_due(self, order: Order) -> None:
        """The same at a boundary; elsewhere all ranks do by themselves what is due."""
        if self.at_boundary:
            self.order(order)

    def completed(self, record: StepRecord) -> None:
        """A step is complete; replicas keep its record for a leader that is away."""
        if self._place is not None:
            self._place.remember(record)

    def state_changed(self) -> None:
        """A decision or a rollback has changed the training state, which all others are to have."""
        if self._place is not None and self.keeps_run:
            self._place.lead()

    def copies_on_host(self, copies: int) -> int:
        """So many copies of every process's training state on this host, or `OneProcessOnly`."""
        if self._place is not None:  # the others would wait for steps that are replayed
            raise OneProcessOnly(
                "steps are replayed by one process alone, and this run has replicas"
            )
        return copies


class _AmongRanks(Coordinator):
    """What rank 0 and the others have in common."""

    comparison: RankComparison

    def __init__(
        self, parts: Parts, stop_request: StopRequest, place: "Place | None" = None
    ) -> None:
        super().__init__(place)
        assert parts.ranks is not None
        self._control = parts.ranks.control
        self._stop_request = stop_request
        self.comparison = RankComparison(parts)

    def copies_on_host(self, copies: int) -> int:
        """All ranks of this node lend theirs at once."""
        return super().copies_on_host(copies) * self.comparison.ranks_here

    def _agreed_word(self) -> int:
        """The highest word of all ranks: what signals asked of them, or that an order follows."""
        return self._control.highest(int(self._stop_request.exit_code or NO_REQUEST))


class RankZero(_AmongRanks):
    """Of rank 0: what its trainer is asked at a boundary, it orders of all ranks; but
    `Trainer.enter` is its own affair, as segments are written in its records alone.
    """

    _listened_to = 1  # until the first step, and again after the last one

    @property
    def at_boundary(self) -> bool:
        """Whether the other ranks listen."""
        return self._listened_to > 0

    def begin(self) -> None:
        """The others begin with this one."""
        super().begin()
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
        word = self._agreed_word()
        if word != NO_REQUEST and self._stop_request.exit_code is None:
            self._stop_request.exit_code = ExitCode(word)


class Follower(_AmongRanks):
    """Of every other rank, which does what rank 0 orders."""

    def __init__(
        self,
        parts: Parts,
        stop_request: StopRequest,
        carry_out: Callable[[Any], None],
        place: "Place | None" = None,
    ) -> None:
        super().__init__(parts, stop_request, place)
        self._carry_out = carry_out

    def begin(self) -> None:
        """What rank 0 decides before its first step."""
        super().begin()
        self._listen()

    def boundary(self, records: Iterable[StepRecord | Event]) -> Iterator[StepRecord | Event]:
        """What rank 0 orders is done once the records are taken, as it orders it then."""
        yield from records
        self._listen()

    def end(self) -> None:
        """What rank 0 does after its last step, until it has `Ended`."""
        self._listen()
        raise ValueError("rank 0 went on after its last step")

    def _listen(self) -> None:
        """Carry out orders until the word to go on."""
        while self._agreed_word() == _ORDER:
            self._carry_out(self._control.share())
