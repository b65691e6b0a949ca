"""Out of memory: which class of tensors grew, from sizes that are known and the allocator's own.

Enters: what a trainer works with, and the error that ended a step. Leaves: what each class of
tensors held before and holds now, in bytes and in words.
Never knows: what follows (`run/train/out_of_memory.py`), or what is written down.
"""

import resource
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from longhaul.checkpoint.capture import local_of
from longhaul.core.machine import available_memory
from longhaul.core.units import Bytes, short_bytes
from longhaul.train.parts import Parts
from longhaul.train.state import training_state
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

_FLOAT32: Bytes = 4
_KIB: Bytes = 1024


def within_step(error: BaseException) -> bool:
    """Whether an error came out of a training step, and not of an evaluation or a save."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "__call__" and isinstance(
            frame.f_locals.get("self"), TrainingStep
        ):
            return True
        trace = trace.tb_next
    return False


@dataclass(frozen=True, slots=True)
class Held:
    """What one class of tensors takes."""

    name: str
    before: Bytes
    """When the attempt began, or at the steps that were made well since."""
    now: Bytes
    on: str
    """`device` or `host`; on a CPU they are one memory."""

    @property
    def grown(self) -> Bytes:
        """By how much."""
        return self.now - self.before

    def __str__(self) -> str:
        if self.before == self.now:
            return f"{self.name} {short_bytes(self.now)}"
        return f"{self.name} {short_bytes(self.before)} → {short_bytes(self.now)}"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What was held when memory ran out."""

    sequences: int
    """Computed at once on this rank."""
    length: int
    held: tuple[Held, ...]
    free: Bytes
    """What was left, as its owner says."""
    unused: Bytes
    """What the device's allocator held in pieces too small to be used; 0 on a CPU."""

    @property
    def grew(self) -> Held | None:
        """The class that grew most; None if none did."""
        most = max(self.held, key=lambda held: held.grown)
        return most if most.grown > 0 else None

    def as_data(self) -> dict[str, Any]:
        """As an event carries it."""
        return {
            "micro_sequences": self.sequences,
            "sequence_length": self.length,
            "grew": self.grew.name if self.grew else None,
            "held": [asdict(held) for held in self.held],
            "free_bytes": self.free,
            "unused_bytes": self.unused,
        }

    def __str__(self) -> str:
        grew = self.grew
        what = f"{grew.name} grew most" if grew else "nothing of this run had grown"
        return (
            f"{what} while {self.sequences} sequences of {self.length} were computed at once "
            f"({', '.join(map(str, self.held))}; {short_bytes(self.free)} were free)"
        )


class MemoryWatch:
    """Remembers what an attempt holds at its beginning, and tells what has grown since.

    Args:
        parts: what the trainer works with; weights and optimizer state are there.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._began = parts.progress.position.step
        self._before = _known(parts)
        self._resident = _most_resident()

    def shortage(self, trainer: Trainer) -> Shortage:
        """What is held by now; called where the error was caught."""
        parts, settings = self._parts, trainer.settings
        device, step = parts.step.device, trainer.position.step
        stage = settings.batch_at(step)
        share = -(-stage.sequences // (parts.ranks.world.data_size if parts.ranks else 1))
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
        ways = parts.ranks.world.layout.tensor if parts.ranks else 1
        logits = computed * parts.step.model.vocab_size * _FLOAT32 // ways
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
