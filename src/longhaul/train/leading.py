"""One trainer on many ranks: rank 0 leads, the others follow at step borders (DESIGN rule 3).

What follows from settings and position alone (steps, evaluations, saves, snapshots that are due)
all ranks do without a word. For the rest the others listen at every border: rank 0 gives its
orders, each of which all ranks carry out, and then the word to go on. That word is reduced over
all ranks, so that rank 0 also learns what signals asked of any of them. With nothing to be ordered
it is the only collective of a border: eight bytes on the CPU, 0.3 ms for 2 ranks on 2 cores and
1.1 ms for 4.

Enters: the decisions of the pilot in rank 0. Leaves: the same calls of the same trainer, in the
same order, on all ranks. Never knows: why anything is decided.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from longhaul.checkpoint.capture import PartsFor
from longhaul.checkpoint.snapshots import DamagedSnapshot
from longhaul.config.recipe import Recipe
from longhaul.core.errors import LonghaulError
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.ledger import LedgerState
from longhaul.train.parts import Identity, Parts
from longhaul.train.watched import SilentCorruption, WatchedTrainer

NO_WISH = 0
_ORDER = 1 << 20
"""The word for "an order follows"; above every wish."""


class OneProcessOnly(LonghaulError):
    """Something that many processes cannot do together yet."""


class _Ended(Exception):
    """Rank 0 has ended, with this exit code."""


@dataclass(frozen=True, slots=True)
class _Order:
    """A method of the trainer, to be called on all ranks."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What signals have asked for, as numbers; the highest one wins."""

    own: Callable[[], int]
    """What this process was asked; `NO_WISH` if nothing."""
    hear: Callable[[int], None]
    """Takes what any process was asked."""


class LeadingTrainer(WatchedTrainer):
    """The trainer of rank 0: what it is told at a border, all ranks do.

    But `enter` is its own affair: segments are written in this rank's records alone.

    Args:
        recipe, ledger, parts, identity: as `WatchedTrainer`.
        wishes: of signals.
    """

    def __init__(
        self,
        recipe: Recipe,
        ledger: LedgerState,
        parts: Parts,
        identity: Identity,
        wishes: Wishes,
    ) -> None:
        self._wishes = wishes
        self._listened_to = 1  # until the first step, and again after the last one
        self._ordering = False
        super().__init__(recipe, ledger, parts, identity)

    @property
    def at_border(self) -> bool:
        """Whether the other ranks listen."""
        return self._listened_to > 0

    def steps(self) -> Iterator[StepRecord | Event]:
        """As `Trainer.steps`; the others begin with this one."""
        self._go_on()
        yield from super().steps()
        self._listened_to += 1

    def border(self, records: Iterable[StepRecord | Event]) -> Iterator[StepRecord | Event]:
        """The others listen until all records are taken."""
        self._listened_to += 1
        yield from records
        self._go_on()

    def apply(self, decision: Decision, segment: str | None = None) -> None:
        """As `Trainer.apply`, on all ranks."""
        with self._ordered("apply", decision, segment):
            super().apply(decision, segment)

    def roll_back(self, restore: Callable[[PartsFor], object]) -> None:
        """As `Trainer.roll_back`; the others restore the checkpoints that this rank tries."""
        with self._ordered("roll_back"):
            super().roll_back(restore)

    def roll_back_in_memory(self, step: int) -> None:
        """As `Trainer.roll_back_in_memory`, on all ranks or on none."""
        with self._ordered("roll_back_in_memory", step):
            super().roll_back_in_memory(step)

    def save_every(self, steps: int) -> None:
        """As `Trainer.save_every`, on all ranks: each saves when it is due without a word."""
        with self._ordered("save_every", steps):
            super().save_every(steps)

    def stop(self) -> None:
        """End `steps()` at the next border, on all ranks."""
        with self._ordered("stop"):
            super().stop()

    def evaluate(self, most_tokens: int | None) -> Iterator[StepRecord | Event]:
        """As `Trainer.evaluate`, windows dealt out."""
        if self.at_border:
            self._order("evaluate", most_tokens)
        yield from super().evaluate(most_tokens)

    def save(self) -> Iterator[StepRecord | Event]:
        """As `Trainer.save`: every rank writes its own shards."""
        if self.at_border:
            self._order("save")
        yield from super().save()

    def compare(self, what: Literal["weights", "slot"]) -> Iterator[StepRecord | Event]:
        """As `WatchedTrainer.compare`."""
        if self.at_border:
            self._order("compare", what)
        yield from super().compare(what)

    def together(self, name: str, *arguments: Any) -> None:
        """Let the others do something that this rank is about to do, by its name."""
        self._order(name, *arguments)

    def accuse(self, sentence: str) -> None:
        """Let the others end of silent corruption, with the same last words."""
        self._order("accuse", sentence)

    def end(self, exit_code: int) -> None:
        """Let the others end too."""
        self._order("end", exit_code)

    def _go_on(self) -> None:
        self._listened_to -= 1
        self._wishes.hear(self._ranks.control.highest(self._wishes.own()))

    @contextmanager
    def _ordered(self, name: str, *arguments: Any) -> Iterator[None]:
        """Order it, unless it is part of what has been ordered."""
        if self._ordering:
            yield
            return
        self._order(name, *arguments)
        self._ordering = True
        try:
            yield
        finally:
            self._ordering = False

    def _order(self, name: str, *arguments: Any) -> None:
        if not self.at_border:
            raise ValueError(f"{name}: the other ranks are under way; orders are given at borders")
        self._ranks.control.highest(_ORDER)
        self._ranks.control.share(_Order(name, arguments))


class FollowingTrainer(WatchedTrainer):
    """The trainer of every other rank; its records are nobody's.

    Args:
        recipe, ledger, parts, identity: as `WatchedTrainer`.
        wishes: of signals.
        restore: fills the parts from the checkpoints that rank 0 tries.
        others: what else may be ordered, by name.
        reached: told how many updates are complete.
    """

    def __init__(
        self,
        recipe: Recipe,
        ledger: LedgerState,
        parts: Parts,
        identity: Identity,
        wishes: Wishes,
        restore: Callable[[PartsFor], object],
        others: Mapping[str, Callable[..., object]],
        reached: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._wishes = wishes
        self._restore = restore
        self._reached = reached
        self._orders: dict[str, Callable[..., object]] = {
            "apply": self.apply,
            "roll_back": self._roll_back,
            "roll_back_in_memory": self._roll_back_in_memory,
            "save_every": self.save_every,
            "stop": self.stop,
            "evaluate": lambda most_tokens: _taken(self.evaluate(most_tokens)),
            "save": lambda: _taken(self.save()),
            "compare": lambda what: _taken(self.compare(what)),
            "accuse": _accuse,
            "end": self._end,
            **others,
        }
        super().__init__(recipe, ledger, parts, identity)

    def follow(self) -> int:
        """Do what rank 0 does until it ends; its exit code."""
        try:
            self._listen()
            _taken(self.steps())
            self._listen()
        except _Ended as end:
            return int(end.args[0])
        raise ValueError("rank 0 went on after its last step")

    def border(self, records: Iterable[StepRecord | Event]) -> Iterator[StepRecord | Event]:
        """Nobody reads the records; what rank 0 orders is done."""
        for record in records:
            if isinstance(record, StepRecord):  # as rank 0 says it, which writes them down
                self._reached(record.step)
        self._listen()
        yield from ()

    def _listen(self) -> None:
        """Carry out orders until the word to go on."""
        while self._ranks.control.highest(self._wishes.own()) == _ORDER:
            order: _Order = self._ranks.control.share()
            self._orders[order.name](*order.arguments)

    def _roll_back(self) -> None:
        _taken(self.completed())
        self.roll_back(self._restore)

    def _roll_back_in_memory(self, step: int) -> None:
        _taken(self.completed())
        with suppress(DamagedSnapshot):  # told by rank 0, which goes to a checkpoint then
            self.roll_back_in_memory(step)

    def _end(self, exit_code: int) -> None:
        raise _Ended(exit_code)


def _accuse(sentence: str) -> None:
    raise SilentCorruption(sentence)


def _taken(records: Iterable[object]) -> None:
    for _ in records:
        pass
