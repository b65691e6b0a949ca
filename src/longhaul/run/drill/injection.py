"""Where a rank's faults act: handlers at the injection points of this process."""

import errno
import math
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor

from longhaul.core.faults import Point, register
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.model.device import queues, wait_for
from longhaul.run.drill.bit_flips import flip_root
from longhaul.run.drill.rank_faults import RankFaults
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer


def inject(folder: RunFolder) -> None:
    """Let the faults of a run act in this process, one of its ranks."""
    faults = RankFaults(folder, os.environ)
    faults.announce()
    handlers = Handlers(faults)
    register(Point.BEFORE_STEP, handlers.before_step)
    register(Point.LOSS, handlers.loss)
    register(Point.BACKWARD, handlers.backward)
    register(Point.READ_BATCH, handlers.read_batch)
    register(Point.WRITE_FILE, handlers.write_file)
    register(Point.FILES_WRITTEN, handlers.files_written)
    register(Point.STORE_CALL, handlers.store_call)


class Handlers:
    """What happens at each point while a fault of this rank acts."""

    def __init__(self, faults: RankFaults) -> None:
        self._faults = faults
        self._slowness = _Slowness(faults)

    def before_step(self, trainer: Trainer, step: int) -> None:
        """Inject what is due before the step."""
        self._faults.begin(trainer, step)
        self._slowness.begin(trainer.training_step.device)

    def loss(self, loss: Tensor, step: TrainingStep, sequences: int) -> Tensor:
        """Out of memory, slow, wrong by a bit, or not a number."""
        fault = self._faults.acting.get("oom")
        if fault is not None and not (fault.strength and sequences <= fault.value):
            self._faults.note_acting(fault)
            raise out_of_memory(sequences)
        self._slowness.rest(step.device)
        if (flip := self._faults.acting.get("bitflip-grad")) is not None:
            flip_root(loss, int(flip.value))
        return loss * math.nan if "nan" in self._faults.acting else loss

    def backward(self, step: TrainingStep) -> None:
        """Slow."""
        self._slowness.rest(step.device)

    def read_batch(self, request: object) -> None:
        """The reader dies."""
        if "loader-crash" in self._faults.acting:
            raise RuntimeError("the reader of batches died (drill)")

    def write_file(self, path: Path) -> None:
        """Slow, or the disk is full: the file is cut short."""
        if (slow := self._faults.acting.get("slow-save")) is not None:
            time.sleep(slow.value)
        if self._faults.until("enospc") is not None:
            path.write_bytes(b"cut short")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def files_written(self, entries: object, folder: Path) -> None:
        """Cut this rank's file in two and die."""
        if self._faults.take("torn-write") is None:
            return
        for path in folder.glob(f"__{self._faults.rank}_*.safetensors"):
            os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    def store_call(self, what: str) -> None:
        """No answer, or a refusal."""
        if (until := self._faults.until("store-hang")) is not None:
            time.sleep(max(0.0, until - time.time()))
        if self._faults.until("store-gone") is not None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the store is away (drill)")


class _Slowness:
    """A rank that computes as a slower chip would: each stretch of computing takes longer.

    On a CPU a stretch is measured in, and made longer by, processor time of the thread that makes
    the step: waiting for others takes no longer, and the rank is as busy as a slow one. A device is
    waited for and the host rests: the step takes longer, the device itself computes as fast as
    ever.
    """

    def __init__(self, faults: RankFaults) -> None:
        self._faults = faults
        self._since: Seconds = 0.0

    def begin(self, device: torch.device) -> None:
        """A step begins on this device."""
        self._since = self._now(device)

    def rest(self, device: torch.device) -> None:
        """Something was computed there."""
        fault = self._faults.acting.get("slow")
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


def out_of_memory(micro_sequences: int) -> torch.OutOfMemoryError:
    """As torch says it."""
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {2 * micro_sequences}.00 MiB. GPU 0 has a total "
        "capacity of 79.15 GiB of which 1.19 MiB is free. Including non-PyTorch memory, this "
        "process has 79.13 GiB memory in use."
    )
