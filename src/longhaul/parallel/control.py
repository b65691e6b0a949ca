"""Messages between ranks at step boundaries, all collective; and waiting for a slow rank 0."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.units import Seconds

Value = TypeVar("Value")
Share = TypeVar("Share")
Outcome = tuple[Value | None, Exception | None]
"""What a rank's work returned, or raised."""


class RankLost(LonghaulError):
    """Another rank did not come to where all ranks meet: it died, or hangs."""

    exit_code = ExitCode.START_AGAIN


class Control:
    """A channel among all ranks; its gloo group is used by one thread only."""

    def __init__(self, group: dist.ProcessGroup, name: str = "control") -> None:
        self.group = group
        self._name = name
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._word = torch.zeros(1, dtype=torch.int64)

    def highest(self, word: int) -> int:
        """The highest of all ranks' words."""
        self._word[0] = word
        with self._naming_who_is_lost():
            dist.all_reduce(self._word, op=dist.ReduceOp.MAX, group=self.group)
        return int(self._word[0])

    def first_number(self, number: int) -> int:
        """Rank 0's number, not below zero."""
        return self.highest(number if self.rank == 0 else 0)

    def agree(self, fine: bool) -> bool:
        """Whether all ranks are fine."""
        return self.highest(0 if fine else 1) == 0

    def share(self, value: Value | None = None) -> Value:
        """Rank 0's value; what others give is not looked at."""
        box: list[Any] = [value]
        with self._naming_who_is_lost():
            dist.broadcast_object_list(box, src=0, group=self.group)
        shared: Value = box[0]
        return shared

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, by rank, on every rank."""
        box: list[Any] = [None] * self.size
        with self._naming_who_is_lost():
            dist.all_gather_object(box, value, group=self.group)
        return box

    def gather_first(self, value: Value) -> list[Value]:
        """The values of all ranks, by rank, on rank 0; else nothing."""
        box: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._naming_who_is_lost():
            dist.gather_object(value, box, dst=0, group=self.group)
        return box or []

    def scatter(self, values: Sequence[Value]) -> Value:
        """Of the values that rank 0 gives, one for each rank, the own."""
        box: list[Any] = [None]
        given = list(values) if self.rank == 0 else None
        with self._naming_who_is_lost():
            dist.scatter_object_list(box, given, src=0, group=self.group)
        own: Value = box[0]
        return own

    def rows(self, figures: torch.Tensor) -> list[list[float]]:
        """The float64 figures of all ranks, by rank, on rank 0, which waits; else nothing."""
        rows = None
        if self.rank == 0:
            rows = [torch.empty_like(figures) for _ in range(self.size)]
        with self._naming_who_is_lost():
            dist.gather(figures, rows, dst=0, group=self.group)
        return [row.tolist() for row in rows or ()]

    def total(self, figures: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks of float64 figures on the CPU."""
        with self._naming_who_is_lost():
            dist.all_reduce(figures, group=self.group)
        return figures

    def _naming_who_is_lost(self) -> AbstractContextManager[None]:
        return naming_the_lost_rank(self.rank, self.size, self._name)


@contextmanager
def naming_the_lost_rank(rank: int, size: int, doing: str) -> Iterator[None]:
    """Raise RankLost for a collective in the body that fails for want of a rank."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise RankLost(
            f"rank {rank} of {size} waited for the others ({doing}), and not all of them came: "
            f"{str(error).splitlines()[0]}",
            "start the same command again; the first rank that ended says why",
        ) from error


def all_do(control: Control | None, body: Callable[[], Value]) -> list[Value]:
    """All ranks (or one process) run `body`; results by rank, or the first failure's exception."""
    if control is None:
        return [body()]
    outcome = _outcome_of(body)
    return _results(control.gather(outcome), outcome)


def deal_out(
    control: Control | None, body: Callable[[], Value], deal: Callable[[list[Value]], list[Share]]
) -> Share:
    """All ranks run `body`, and rank 0 makes a share for each of what they return: this rank's.
    Raises as `all_do`. Only rank 0 holds what all have, which may be much: a million pieces.
    """
    if control is None:
        return deal([body()])[0]
    outcome = _outcome_of(body)
    given = control.gather_first(outcome)
    to_all: list[Outcome[Share]] = []
    if control.rank == 0:
        shares, error = _outcome_of(lambda: deal(_results(given, outcome)))
        to_all = [(None, error)] * control.size if error else [(one, None) for one in shares or ()]
    return _results([control.scatter(to_all)], outcome)[0]


def _outcome_of(body: Callable[[], Value]) -> Outcome[Value]:
    try:
        return body(), None
    except Exception as error:  # noqa: BLE001 (it is raised again, on every rank)
        return None, error


def _results(outcomes: list[Outcome[Value]], own: Outcome[Any] | None) -> list[Value]:
    for _, failure in outcomes:
        if failure is not None:
            raise failure from own[1] if own and own[1] is not failure else None
    return [cast(Value, found) for found, _ in outcomes]


def first_does(control: Control | None, body: Callable[[], Value]) -> Value:
    """Rank 0 runs `body`; its result on all ranks, or its exception. One process is the first."""
    if control is None:
        return body()
    outcome = _outcome_of(body) if control.rank == 0 else None
    return _results([control.share(outcome)], outcome)[0]


STILL_AT_IT = "still at it"
"""What the other ranks are told; they ask again (`received`)."""
_WORD_EVERY_S: Seconds = 1.0


def patiently(work: Callable[[], Value], control: Control | None) -> Value:
    """The result of `work`; until it comes, the other ranks are kept waiting by `received`.

    A collective that nobody joins in time fails on all ranks; a store may take longer than that. So
    the work is done on a thread, and the others are told again and again that it goes on.
    """
    if control is None:
        return work()
    done: Future[Value] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 (raised again below)
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not wait([done], _WORD_EVERY_S).done:
        control.share(STILL_AT_IT)
    return done.result()


def received(control: Control) -> Any:
    """What rank 0 shares, once it has come to it; on every other rank."""
    value: Any = STILL_AT_IT
    while value == STILL_AT_IT:
        value = control.share()
    return value
