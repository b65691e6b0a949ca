"""Faults in a rank's process: which act when, and what each does at the injection points.

`drill.json` is read before every step, so that a soak may add faults to a run that trains.
"""

import errno
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from longhaul.core.faults import Point, register
from longhaul.core.files import write_json
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.holder import process_started
from longhaul.logbook.lease import newest_holder
from longhaul.model.device import queues, wait_for
from longhaul.run.drill.bit_flips import flip_newest_checkpoint, flip_root, flip_weight
from longhaul.run.drill.fault import CORRECTED_XIDS, CUDA_ERRORS, XIDS, Fault
from longhaul.run.drill.laid import (
    Done,
    laid_path,
    note_done,
    read_done,
    read_laid,
    write_kernel_log,
)
from longhaul.supervise.nodes.placement import NODE
from longhaul.supervise.ranks.group import ATTEMPT
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer


def inject(folder: RunFolder) -> None:
    """Let the faults of a run act in this process, one of its ranks."""
    faults = RankFaults(folder, os.environ)
    faults.announce()
    register(Point.BEFORE_STEP, faults.begin)
    register(Point.LOSS, faults.loss)
    register(Point.BACKWARD, faults.slow_down)
    register(Point.READ_BATCH, faults.read_batch)
    register(Point.WRITE_FILE, faults.write_file)
    register(Point.FILES_WRITTEN, faults.files_written)
    register(Point.STORE_CALL, faults.store_call)


class RankFaults:
    """The faults of one rank, which its process's environment names."""

    def __init__(self, folder: RunFolder, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.rank = int(environment.get("RANK", "0"))
        self.node = environment.get(NODE, "")
        self.attempt = int(environment.get(ATTEMPT, "1"))
        self._is_first = environment.get("LOCAL_RANK", "0") == "0"
        self._step = 0
        self._laid: tuple[Fault, ...] = ()
        self._seen: tuple[int, int] | None = None
        self._done = {(done.number, done.attempt) for done in self._read_own()}
        self._lock = threading.Lock()
        self._computing_since: Seconds = 0.0
        self.acting: dict[str, Fault] = {}
        """Kind → what acts in the step that is being made."""
        self.waiting: dict[str, tuple[int, Fault]] = {}
        """Kind → number and fault that comes about at the next chance."""
        self.look()

    def look(self) -> None:
        """Read the faults if others were laid."""
        found = laid_path(self.folder).stat()
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            self._laid, self._seen = read_laid(self.folder), seen

    def begin(self, trainer: Trainer, step: int) -> None:
        """Inject what is due before this rank makes `step`; keep what acts during it."""
        self.look()
        self._step, self.acting = step, {}
        for number, fault in enumerate(self._laid):
            if not self._comes(number, fault):
                continue
            if fault.known.waits:
                self.waiting.setdefault(fault.kind, (number, fault))
            elif (act := _ACTS.get(fault.kind)) is not None:
                act(self, fault, trainer, partial(self.note, number, fault))
            else:
                self.acting[fault.kind] = fault
                if fault.kind != "oom":  # which is noted where the micro-batch is known
                    self.note(number, fault)
        self._computing_since = _computing_time(trainer.training_step.device)

    def note(self, number: int, fault: Fault) -> Seconds:
        """Remember that a fault is done now, once an attempt; when it was."""
        now = time.time()
        with self._lock:
            if (number, self.attempt) not in self._done:
                self._done.add((number, self.attempt))
                own = self.rank, self.node, self.attempt, self._step
                note_done(self.folder, Done(number, str(fault), *own, now))
        return now

    def take(self, kind: str) -> tuple[Seconds, Fault] | None:
        """The fault of this kind that the chance is for, noted as done now; and when that was."""
        with self._lock:
            waiting = self.waiting.pop(kind, None)
        return None if waiting is None else (self.note(*waiting), waiting[1])

    def announce(self) -> None:
        """Let other ranks of this node find this process."""
        pid = os.getpid()
        body = {"pid": pid, "started": process_started(pid), "node": self.node}
        _ranks(self.folder).mkdir(exist_ok=True)
        write_json(_ranks(self.folder) / f"{self.rank}.json", body)

    def until(self, kind: str) -> Seconds | None:
        """Unix time up to which a fault of this kind lasts that has begun or begins now; None."""
        if (taken := self.take(kind)) is not None:
            return taken[0] + taken[1].value
        now = time.time()
        for done in self._read_own():
            fault = self._laid[done.number] if done.number < len(self._laid) else None
            if fault and fault.kind == kind and now < done.time + fault.value:
                return done.time + fault.value
        return None

    def loss(self, loss: Tensor, step: TrainingStep, sequences: int) -> Tensor:
        """Out of memory, slow, wrong by a bit, or not a number."""
        fault = self.acting.get("oom")
        if fault is not None and not (fault.strength and sequences <= fault.value):
            self.note(self._laid.index(fault), fault)
            raise out_of_memory(sequences)
        self.slow_down(step)
        if (flip := self.acting.get("bitflip-grad")) is not None:
            flip_root(loss, int(flip.value))
        return loss * math.nan if "nan" in self.acting else loss

    def slow_down(self, step: TrainingStep) -> None:
        """Compute as a slower chip would, if that is to be: each stretch of computing takes longer.

        On a CPU a stretch is measured in, and made longer by, processor time of the thread that
        makes the step: waiting for others takes no longer, and the rank is as busy as a slow one.
        A device is waited for and the host rests: the step takes longer, the device itself computes
        as fast as ever.
        """
        if (slow := self.acting.get("slow")) is None:
            return
        longer = (slow.value - 1) * (_computing_time(step.device) - self._computing_since)
        if queues(step.device):
            time.sleep(longer)
        else:
            until = time.thread_time() + longer
            while time.thread_time() < until:
                pass
        self._computing_since = _computing_time(step.device)

    def read_batch(self, request: object) -> None:
        """The reader dies."""
        if "loader-crash" in self.acting:
            raise RuntimeError("the reader of batches died (drill)")

    def write_file(self, path: Path) -> None:
        """Slow, or the disk is full: the file is cut short."""
        if (slow := self.acting.get("slow-save")) is not None:
            time.sleep(slow.value)
        if self.until("enospc") is not None:
            path.write_bytes(b"cut short")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def files_written(self, entries: object, folder: Path) -> None:
        """Cut this rank's file in two and die."""
        if self.take("torn-write") is None:
            return
        for path in folder.glob(f"__{self.rank}_*.safetensors"):
            os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    def store_call(self, what: str) -> None:
        """No answer, or a refusal."""
        if (until := self.until("store-hang")) is not None:
            time.sleep(max(0.0, until - time.time()))
        if self.until("store-gone") is not None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the store is away (drill)")

    def _read_own(self) -> list[Done]:
        return [done for done in read_done(self.folder) if done.rank == self.rank]

    def _comes(self, number: int, fault: Fault) -> bool:
        if fault.rank is None and not fault.node:
            return False  # it is of the run's numbers: `tests/drills/number_faults.py`
        if fault.rank not in (None, self.rank) or fault.attempt not in (None, self.attempt):
            return False
        here = fault.node in ("", self.node)
        if not here or (fault.rank is None and not (fault.known.whole_node or self._is_first)):
            return False
        if fault.last is not None:
            return fault.first <= self._step <= fault.last
        if fault.in_every_attempt:
            return self._step == fault.first
        done = fault.once and any(done == number for done, _ in self._done)
        return self._step >= fault.first and not done


Note = Callable[[], object]
"""Remembers that the fault is done now."""


def _send(rank: RankFaults, fault: Fault, trainer: Trainer, note: Note) -> None:
    """Send a signal, at once or some seconds later: in the middle of whatever is done then."""
    pid, what = os.getpid(), _SIGNALS[fault.kind]
    if fault.kind in ("preempt", "supervisor-kill"):
        holder = newest_holder(rank.folder)
        if holder is None or not holder.pid:
            return
        pid = holder.pid
    note()
    if not fault.value:
        os.kill(pid, what)
        return
    begun = process_started(pid)

    def later() -> None:
        if process_started(pid) == begun:
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    timer = threading.Timer(fault.value, later)
    timer.daemon = True
    timer.start()


def _hang(rank: RankFaults, fault: Fault, trainer: Trainer, note: Note) -> None:
    note()
    while True:
        time.sleep(3600.0)


def _raise(rank: RankFaults, fault: Fault, trainer: Trainer, note: Note) -> None:
    note()
    if fault.kind == "cuda-error":
        raise RuntimeError(_cuda_text(CUDA_ERRORS[fault.word]))
    raise RuntimeError("an invariant that nobody had thought of does not hold")


def _lose_node(rank: RankFaults, fault: Fault, trainer: Trainer, note: Note) -> None:
    note()
    for path in _ranks(rank.folder).glob("*.json"):
        with suppress(OSError, ValueError, KeyError):
            body = json.loads(path.read_bytes())
            same = body["node"] == rank.node and body["pid"] != os.getpid()
            if same and process_started(body["pid"]) == body["started"]:
                os.kill(body["pid"], signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _ecc(rank: RankFaults, fault: Fault, trainer: Trainer, note: Note) -> None:
    note()
    xid = int(fault.value)
    line = f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid={os.getpid()}, {XIDS[xid]}"
    write_kernel_log(rank.folder, rank.node, line)
    if xid not in CORRECTED_XIDS:
        raise RuntimeError(_cuda_text(CUDA_ERRORS["ecc" if xid != 79 else "lost"]))


def _flip_weight(rank: RankFaults, fault: Fault, trainer: Trainer, note: Note) -> None:
    note()
    flip_weight(trainer.training_step, int(fault.value))


def _flip_file(rank: RankFaults, fault: Fault, trainer: Trainer, note: Note) -> None:
    trainer._parts.saver.wait()  # or what is being written would soon be newer
    flip_newest_checkpoint(rank.folder, note)


_SIGNALS = {
    "kill": signal.SIGKILL, "stop": signal.SIGSTOP,
    "preempt": signal.SIGTERM, "supervisor-kill": signal.SIGKILL,
}  # fmt: skip
_ACTS: dict[str, Callable[[RankFaults, Fault, Trainer, Note], None]] = {
    **dict.fromkeys(_SIGNALS, _send),
    "hang-collective": _hang,
    "exception": _raise,
    "cuda-error": _raise,
    "node-gone": _lose_node,
    "ecc": _ecc,
    "bitflip-weight": _flip_weight,
    "bitflip-file": _flip_file,
}
"""What is injected before a step. All other kinds act within it, or wait for their chance."""


def _ranks(folder: RunFolder) -> Path:
    return folder.path / "drill-ranks"


def _cuda_text(error: str) -> str:
    return (
        f"CUDA error: {error}\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    )


def _computing_time(device: torch.device) -> Seconds:
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
