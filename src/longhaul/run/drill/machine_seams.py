"""Where a drill's worker lets faults of machines into longhaul's own functions.

Enters: hands (`machine_faults.py`). Leaves: functions of this process replaced by ones that do the
same until a fault says otherwise.
Never knows: when a fault acts.
"""

import errno
import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import longhaul.checkpoint.tensor_file
import longhaul.checkpoint.write
import longhaul.store.manifest
from longhaul.core.units import Seconds
from longhaul.data.batches import Batch, BatchReader, BatchRequest
from longhaul.model.device import queues, wait_for
from longhaul.run.drill.bit_flips import flip_root
from longhaul.run.drill.machine_faults import Hands, out_of_memory
from longhaul.store.manifest import FileEntry
from longhaul.store.transfers import Calls
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

_REFUSED = "the store is away (drill)"


def let_in(hands: Hands) -> None:
    """Put the seams into this process."""
    slowness = Slowness(hands)
    _around_steps(hands, slowness)
    _around_losses(hands, slowness)
    _around_reading(hands)
    _around_saving(hands)
    _around_stores(hands)


class Slowness:
    """A rank that computes as a slower chip would: each stretch of computing takes longer.

    On a CPU a stretch is measured in, and made longer by, processor time of the thread that makes
    the step: waiting for others takes no longer, and the rank is as busy as a slow one. A device is
    waited for and the host rests: the step takes longer, the device itself computes as fast as
    ever.

    Args:
        hands: say whether and how much.
    """

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._since: Seconds = 0.0

    def begin(self, device: torch.device) -> None:
        """A step begins on this device."""
        self._since = self._now(device)

    def rest(self, device: torch.device) -> None:
        """Something was computed there."""
        fault = self._hands.acting.get("slow")
        if fault is None:
            return
        longer = (fault.value - 1) * (self._now(device) - self._since)
        if queues(device):
            time.sleep(longer)
        else:
            until = time.thread_time() + longer
            while time.thread_time() < until:
                pass
        self._since = self._now(device)

    def _now(self, device: torch.device) -> Seconds:
        if queues(device):
            wait_for(device)
            return time.monotonic()
        return time.thread_time()


def _around_steps(hands: Hands, slowness: Slowness) -> None:
    make = Trainer._step

    def made(trainer: Trainer) -> None:
        hands.begin(trainer, trainer.position.step + 1)
        slowness.begin(trainer.training_step.device)
        make(trainer)

    _put(Trainer, "_step", made)


def _around_losses(hands: Hands, slowness: Slowness) -> None:
    compute, backward = TrainingStep._loss, TrainingStep._backward

    def loss(step: TrainingStep, tokens_BT: Tensor, *given: Any, **named: Any) -> Tensor:
        _run_out_of_memory(hands, len(tokens_BT))
        computed = compute(step, tokens_BT, *given, **named)
        slowness.rest(step.device)
        if (flip := hands.acting.get("bitflip-grad")) is not None:
            flip_root(computed, int(flip.value))
        return computed * math.nan if "nan" in hands.acting else computed

    def back(step: TrainingStep, micro_loss: Tensor) -> None:
        backward(step, micro_loss)
        slowness.rest(step.device)

    _put(TrainingStep, "_loss", loss)
    _put(TrainingStep, "_backward", back)


def _run_out_of_memory(hands: Hands, micro_sequences: int) -> None:
    fault = hands.acting.get("oom")
    if fault is None or (fault.strength and micro_sequences <= fault.value):
        return
    hands.note(hands.number_of(fault), fault)
    raise out_of_memory(micro_sequences)


def _around_reading(hands: Hands) -> None:
    read = BatchReader._read

    def reading(reader: BatchReader, request: BatchRequest) -> Batch:
        if "loader-crash" in hands.acting:
            raise RuntimeError("the reader of batches died (drill)")
        return read(reader, request)

    _put(BatchReader, "_read", reading)


def _around_saving(hands: Hands) -> None:
    save, write = longhaul.checkpoint.write._save, longhaul.store.manifest.write_listed_file

    def saving(folder: Path, *given: Any) -> tuple[FileEntry, ...]:
        entries = save(folder, *given)
        torn = hands.waiting.pop("torn-write", None)
        if torn is not None:
            hands.note(*torn)
            _tear(folder, hands.rank)
        return entries

    def writing(path: Path, pieces: Iterable[bytes | memoryview]) -> FileEntry:
        if (slow := hands.acting.get("slow-save")) is not None:
            time.sleep(slow.value)
        until = hands.until("enospc")
        if until is None:
            return write(path, pieces)
        with path.open("wb") as file:
            file.write(next(iter(pieces)))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    _put(longhaul.checkpoint.write, "_save", saving)
    for module in (
        longhaul.checkpoint.write,
        longhaul.checkpoint.tensor_file,
        longhaul.store.manifest,
    ):
        _put(module, "write_listed_file", writing)


def _tear(folder: Path, rank: int) -> None:
    """Cut this rank's file in two and die."""
    for path in folder.glob(f"__{rank}_*.safetensors"):
        os.truncate(path, path.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def _around_stores(hands: Hands) -> None:
    within = Calls.within

    def asked(calls: Calls, most_s: Seconds, what: str, call: Callable[[], Any]) -> Any:
        def answered() -> Any:
            if (until := hands.until("store-hang")) is not None:
                time.sleep(max(0.0, until - time.time()))
            if hands.until("store-gone") is not None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, _REFUSED)
            return call()

        return within(calls, most_s, what, answered)

    _put(Calls, "within", asked)


def _put(where: Any, name: str, what: Any) -> None:
    setattr(where, name, what)
