"""Out of memory: which class of tensors grew, and what follows: once, a smaller micro-batch.

A rank that has run out cannot go on: the others stand in the middle of a pass and wait for it. So
it writes down what had grown and what the next attempt is to do, and leaves; whoever starts the
run again finds that event in the journal, and decides before the first step (`memory.py`). The
global batch stays as it is.
"""

import resource
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from longhaul.checkpoint.capture import local_of
from longhaul.config.load import with_overrides
from longhaul.config.model import rows_at_once
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock
from longhaul.core.errors import ExitCode, LonghaulError, NeedsPerson
from longhaul.core.events import EventKind
from longhaul.core.machine import available_memory
from longhaul.core.records import Event
from longhaul.core.units import Bytes, short_bytes
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import Journal
from longhaul.logbook.ledger import LedgerError, LedgerState
from longhaul.train.allocation_errors import (
    DEVICE,
    HOST,
    PINNED,
    TooMuchEvaluated,
    TooMuchMeasured,
    refused_memory,
)
from longhaul.train.memory import EVALUATION, PATH, RAN_OUT
from longhaul.train.micro_batch import candidates
from longhaul.train.parts import Parts
from longhaul.train.state import training_state
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

_FLOAT32: Bytes = 4
_KIB: Bytes = 1024


def within_step(error: BaseException) -> bool:
    """Whether an error came out of a training step, and not of an evaluation or a save."""
    return any(
        frame.f_code.co_name == "__call__" and isinstance(frame.f_locals.get("self"), TrainingStep)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


@dataclass(frozen=True, slots=True)
class Held:
    """What one class of tensors takes."""

    name: str
    before: Bytes
    """When the attempt began, or at the steps that were made well since."""
    now: Bytes
    on: str
    """`device` or `host`; on a CPU they are one memory."""

    def __str__(self) -> str:
        if self.before == self.now:
            return f"{self.name} {short_bytes(self.now)}"
        return f"{self.name} {short_bytes(self.before)} → {short_bytes(self.now)}"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What was held when memory ran out; its fields are those of the event."""

    micro_sequences: int
    """Computed at once on this rank."""
    sequence_length: int
    held: tuple[Held, ...]
    free_bytes: Bytes
    """What was left, as its owner says."""
    unused_bytes: Bytes
    """What the device's allocator held in pieces too small to be used; 0 on a CPU."""

    @property
    def grew(self) -> Held | None:
        """The class that grew most; None if none did."""
        most = max(self.held, key=lambda held: held.now - held.before)
        return most if most.now > most.before else None

    def as_data(self) -> dict[str, Any]:
        """As an event carries it."""
        return asdict(self) | {"grew": self.grew.name if self.grew else None}

    def __str__(self) -> str:
        grew = self.grew
        what = f"{grew.name} grew most" if grew else "nothing of this run had grown"
        return (
            f"{what} while {self.micro_sequences} sequences of {self.sequence_length} were computed"
            f" at once ({', '.join(map(str, self.held))}; {short_bytes(self.free_bytes)} were free)"
        )


_HOSTED = ("snapshots", "staging of saves")


def _known(parts: Parts) -> dict[str, Bytes]:
    state = training_state(parts.step, parts.progress)
    return {
        "weights": _size(state["model"].tensors().values()),
        "gradients": 0,
        "optimizer state": _size(state["optim"].tensors().values()),
        "snapshots": parts.snapshots.held_bytes,
        "staging of saves": parts.saver.held_bytes,
    }


def _size(tensors: Iterable[Tensor]) -> Bytes:
    return sum(local_of(tensor).nbytes for tensor in tensors)


def _most_resident() -> Bytes:
    """The most memory of the host that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


Emit = Callable[..., object]
"""Writes an `out-of-memory` event, durably: the step, and its data by name."""
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

    def __init__(self, message: str, what: str) -> None:
        super().__init__(f"{message}; the next attempt {what}", "start the same command again")


@dataclass(eq=False)
class MemoryGuard:
    """Answers errors of one rank's attempt."""

    _parts: Parts
    _recipe: Recipe
    _folder: RunFolder
    """The run's; a summary of the allocator is left in its `workers/`."""
    _emit: Emit

    def __post_init__(self) -> None:
        self._rank = 0 if self._parts.ranks is None else self._parts.ranks.rank
        # What the attempt holds at its beginning.
        self._began = self._parts.progress.position.step
        self._before = _known(self._parts)
        self._resident = _most_resident()

    @contextmanager
    def answering(self, trainer: Trainer | None = None) -> Iterator[None]:
        """Let errors of the body that speak of memory be answered as by `answer`; others pass."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if answer := self.answer(error, trainer):
                raise answer from error
            raise

    def answer(self, error: BaseException, trainer: Trainer | None) -> LonghaulError | None:
        """What to end with; None if `error` does not speak of memory."""
        if isinstance(error, TooMuchMeasured):
            said = f"ran out of memory while {error.sequences} sequences were measured"
            step = self._parts.progress.position.step
            message = self._report(step, said, {"measured": error.sequences})
            half = max(1, error.sequences // 2)
            return SmallerNext(message, f"computes {half} sequences at once or fewer")
        memory = refused_memory(error)
        if trainer is None or memory is None:
            return None
        shortage, step = self._shortage(trainer), trainer.position.step
        path, fewer = PATH, None
        why_not = "it was neither a training step nor an evaluation that asked for it"
        if isinstance(error, TooMuchEvaluated):
            path, why_not = EVALUATION, "a single sequence of model.context tokens was evaluated"
            fewer = error.sequences // 2 or None
        elif memory == PINNED:
            why_not = "fewer sequences at once need no less of it"
        elif within_step(error):
            fewer, why_not = fewer_sequences(
                self._recipe, trainer.ledger, step, shortage.micro_sequences
            )
        doing = " in an evaluation" if path == EVALUATION else ""
        data = shortage.as_data() | {
            "memory": memory,
            "path": path,
            "said": str(error).partition("\n")[0],
            "next": fewer,
            "summary": self._allocator_summary(),
        }
        message = self._report(step, f"ran out of {memory} at step {step}{doing}: {shortage}", data)
        if fewer is None:
            return NeedsPerson(f"{message}; {why_not}", _WAYS_OUT[memory])
        does = "evaluates" if path == EVALUATION else "computes"
        return SmallerNext(message, f"{does} {fewer} sequence{'s' * (fewer > 1)} at once")

    def _report(self, step: int, what: str, data: Mapping[str, Any]) -> str:
        """Write an event of what this rank ran out of, as far as possible; its message."""
        message, asked = f"rank {self._rank} {what}", self._recipe.batch.micro_sequences
        with suppress(LedgerError, OSError):  # the end is told all the same
            self._emit(step, rank=self._rank, message=message, asked=asked, **data)
        return message

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

    def _shortage(self, trainer: Trainer) -> Shortage:
        """What is held by now; called where the error was caught."""
        parts, settings = self._parts, trainer.settings
        device, step = parts.step.device, trainer.position.step
        stage = settings.batch_at(step)
        share = -(-stage.sequences // (parts.ranks.data_size if parts.ranks else 1))
        sequences = min(settings.micro_sequences(step), share)
        computed, made = sequences * stage.sequence_length, step > self._began
        now = _known(parts)
        # Those of the steps that were made well: they were as large as these.
        gradients = sum(local_of(p).nbytes for p in parts.step.model.parameters())
        now["gradients"], self._before["gradients"] = gradients, gradients if made else 0
        activations = self._activations(now)
        first = settings.batch_at(self._began)
        earlier = min(settings.micro_sequences(self._began), share) * first.sequence_length
        before = activations * min(computed, earlier) // computed if made else 0
        ways = parts.ranks.layout.tensor if parts.ranks else 1
        vocab_size, is_whole = parts.step.model.vocab_size, ways > 1
        is_whole |= settings.precision.half_weights == "fp16"
        in_place = parts.step.model.loss_kernel is not None
        on_cpu = device.type == "cpu"
        rows = computed if is_whole else rows_at_once(computed, vocab_size, on_cpu, in_place)
        logits = rows * vocab_size * _FLOAT32 // ways
        held = [
            Held(name, self._before[name], size, "host" if name in _HOSTED else "device")
            for name, size in now.items()
        ]
        held.append(Held("activations", before, activations, "device"))
        # Part of the activations, and the part that a large vocabulary makes the largest.
        held.append(Held("logits", logits if made else 0, logits, "device"))
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            return Shortage(sequences, stage.sequence_length, tuple(held), free, unused)
        return Shortage(sequences, stage.sequence_length, tuple(held), available_memory(), 0)

    def _activations(self, now: dict[str, Bytes]) -> Bytes:
        """What the passes held at most, beside what is known: the rest of what was allocated."""
        device = self._parts.step.device
        if device.type == "cuda":
            known = sum(size for name, size in now.items() if name not in _HOSTED)
            return max(0, torch.cuda.max_memory_allocated(device) - known)
        grown = sum(now.values()) - sum(self._before.values())
        return max(0, _most_resident() - self._resident - max(0, grown))


def fewer_sequences(
    recipe: Recipe, ledger: LedgerState, step: int, at_once: int
) -> tuple[int | None, str]:
    """Sequences to compute at once next, half of `at_once` at most; else None and why not."""
    earlier = ledger.override_at(PATH, step)
    if earlier is not None and earlier.who == RAN_OUT:
        return None, f"{earlier.value} at once are fewer than asked for already"
    effective = with_overrides(recipe, ledger.overrides_at(step))
    sizes = candidates(stage.sequences for stage in effective.batch_stages())
    fewer = next((size for size in sizes if 2 * size <= at_once), None)
    return fewer, "no smaller number divides every batch stage"


def reporting_in_own_file(folder: RunFolder, attempt: int, rank: int, clock: Clock) -> Emit:
    """For a rank that has no logbook: a journal file of its own, made when it is needed."""

    def emit(step: int, **data: Any) -> None:
        event = Event(
            kind=EventKind.OUT_OF_MEMORY, attempt=attempt, step=step, time=clock.wall(), data=data
        )
        with closing(Journal(folder, attempt, author=f"rank-{rank}")) as journal:
            journal.append_durably(event)

    return emit
