"""What follows where a rank runs out of memory: once, a smaller micro-batch (incident M17).

A rank that has run out cannot go on: the others stand in the middle of a pass and wait for it. So
it writes down what had grown and what the next attempt is to do, and leaves; whoever starts the
run again (the supervisor at once) finds that word in the journal, and the decision is made before
the first step (`run/train/micro_batch.py`). The global batch stays as it is.

Enters: errors of an attempt, its trainer. Leaves: an event in the journal, and the error to end
with: start again, or a person must look.
Never knows: how memory is counted.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock
from longhaul.core.errors import ExitCode, LonghaulError, NeedsPerson
from longhaul.core.events import EventKind
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import Journal
from longhaul.logbook.ledger import LedgerError, LedgerState
from longhaul.run.train.micro_batch import EVALUATION, PATH, RAN_OUT
from longhaul.train.allocation_errors import (
    DEVICE,
    HOST,
    PINNED,
    TooMuchEvaluated,
    TooMuchMeasured,
    refused_memory,
)
from longhaul.train.micro_batch import candidates
from longhaul.train.out_of_memory import MemoryWatch, within_step
from longhaul.train.parts import Parts
from longhaul.train.trainer import Trainer

Tell = Callable[[int, Mapping[str, Any]], None]
"""Writes an `out-of-memory` event, durably: the step and its data."""
_WAYS_OUT = {
    HOST: "free memory, take fewer snapshots (checkpoint.snapshot_mb), shard over more processes "
    "([parallel]), or make batch.sequence_length or the model smaller",
    PINNED: "free memory of the host, raise `ulimit -l`, or set checkpoint.snapshot_mb or "
    "optim.offload lower",
    DEVICE: "free memory, set machine.activation_checkpointing, shard over more processes "
    "([parallel]), or make batch.sequence_length or the model smaller",
}


class SmallerNext(LonghaulError):
    """Memory ran out; the next attempt computes fewer sequences at once."""

    exit_code = ExitCode.START_AGAIN


class MemoryGuard:
    """Answers errors of one rank's attempt.

    Args:
        parts: what the trainer works with.
        recipe: as asked for.
        folder: the run's; a summary of the allocator is left in its `workers/`.
        emit: writes the event.
    """

    def __init__(self, parts: Parts, recipe: Recipe, folder: RunFolder, emit: Tell) -> None:
        self._parts = parts
        self._recipe = recipe
        self._folder = folder
        self._emit = emit
        self._rank = 0 if parts.ranks is None else parts.ranks.world.rank
        self._watch = MemoryWatch(parts)

    @contextmanager
    def answering(self, trainer: Trainer | None = None) -> Iterator[None]:
        """Let errors of the body that speak of memory be answered; others pass.

        Raises:
            SmallerNext, NeedsPerson: see `answer`.
        """
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if answer := self.answer(error, trainer):
                raise answer from error
            raise

    def answer(self, error: BaseException, trainer: Trainer | None) -> LonghaulError | None:
        """What to end with; None if `error` does not speak of memory.

        Args:
            error: that ended the attempt.
            trainer: of this rank; None if it was not made yet.
        """
        if isinstance(error, TooMuchMeasured):
            return self._measured_too_much(error.sequences)
        memory = refused_memory(error)
        if trainer is None or memory is None:
            return None
        shortage, step = self._watch.shortage(trainer), trainer.position.step
        path, fewer = PATH, None
        why_not = "it was neither a training step nor an evaluation that asked for it"
        if isinstance(error, TooMuchEvaluated):
            path, why_not = EVALUATION, "a single sequence of model.context tokens was evaluated"
            fewer = error.sequences // 2 or None
        elif memory == PINNED:
            why_not = "fewer sequences at once need no less of it"
        elif within_step(error):
            fewer, why_not = fewer_sequences(self._recipe, trainer.ledger, step, shortage.sequences)
        doing = " in an evaluation" if path == EVALUATION else ""
        message = f"rank {self._rank} ran out of {memory} at step {step}{doing}: {shortage}"
        data = shortage.as_data() | {
            "rank": self._rank,
            "message": message,
            "memory": memory,
            "path": path,
            "said": str(error).partition("\n")[0],
            "asked": self._recipe.batch.micro_sequences,
            "next": fewer,
            "summary": self._allocator_summary(),
        }
        with suppress(LedgerError, OSError):  # the end is told all the same
            self._emit(step, data)
        if fewer is None:
            return NeedsPerson(f"{message}; {why_not}", _WAYS_OUT[memory])
        does = "evaluates" if path == EVALUATION else "computes"
        return SmallerNext(
            f"{message}; the next attempt {does} {fewer} sequence{'s' * (fewer > 1)} at once",
            "start the same command again",
        )

    def _measured_too_much(self, sequences: int) -> LonghaulError:
        message = f"rank {self._rank} ran out of memory while {sequences} sequences were measured"
        data = {
            "rank": self._rank,
            "message": message,
            "asked": self._recipe.batch.micro_sequences,
            "measured": sequences,
        }
        with suppress(LedgerError, OSError):
            self._emit(self._parts.progress.position.step, data)
        fewer = max(1, sequences // 2)
        return SmallerNext(
            f"{message}; the next attempt computes {fewer} sequences at once or fewer",
            "start the same command again",
        )

    def _allocator_summary(self) -> str | None:
        """The path of the CUDA allocator's own table; None on other devices."""
        device = self._parts.step.device
        if device.type != "cuda":
            return None
        path = self._folder.workers / f"{self._rank}.memory.txt"
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_text(torch.cuda.memory_summary(device), encoding="utf-8")
        return str(path)


def fewer_sequences(
    recipe: Recipe, ledger: LedgerState, step: int, at_once: int
) -> tuple[int | None, str]:
    """Sequences to compute at once next, half as many at most; else None and why not.

    Args:
        recipe: as asked for.
        ledger: in force.
        step: at which memory ran out.
        at_once: sequences that were computed at once on a rank.
    """
    earlier = ledger.override_at(PATH, step)
    if earlier is not None and earlier.who == RAN_OUT:
        return None, f"{earlier.value} at once are fewer than asked for already"
    effective = with_overrides(recipe, ledger.overrides_at(step))
    sizes = candidates(stage.sequences for stage in effective.batch_stages())
    fewer = next((size for size in sizes if 2 * size <= at_once), None)
    return fewer, "no smaller number divides every batch stage"


def reporting_in_own_file(folder: RunFolder, attempt: int, rank: int, clock: Clock) -> Tell:
    """For a rank that has no logbook: a journal file of its own, made when it is needed."""

    def emit(step: int, data: Mapping[str, Any]) -> None:
        journal = Journal(folder, attempt, author=f"rank-{rank}")
        try:
            journal.append_durably(
                Event(
                    kind=EventKind.OUT_OF_MEMORY,
                    attempt=attempt,
                    step=step,
                    time=clock.wall(),
                    data=data,
                )
            )
        finally:
            journal.close()

    return emit
