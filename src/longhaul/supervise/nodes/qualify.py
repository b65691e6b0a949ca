"""Asking something of a node: a short process there that answers with one line of JSON; and the
probe of a node, `python -m longhaul.supervise.nodes.qualify FOLDER SLOTS`, in a process with a
deadline, because what it looks for may hang or crash it. With `errors`: its memory errors.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from longhaul.core.addresses import unsealed
from longhaul.core.units import Bytes, Seconds, short_seconds
from longhaul.supervise.nodes.ledger import read_node

_LOOK_EVERY_S: Seconds = 0.02
_LONGEST_WORDS = 300
Wait = Callable[[Seconds], bool]
"""Lets time pass; False if somebody wants an end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node said."""

    came: bool
    """The process ended well, and in time."""
    reason: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    """Its last line of output, if that was JSON."""
    text: str = ""


class Inquiry:
    """A process that is to answer, and is killed after `most_s`."""

    def __init__(
        self, words: Sequence[str], most_s: Seconds, environment: Mapping[str, str] | None = None
    ) -> None:
        self._most_s = most_s
        self._deadline = time.monotonic() + most_s
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (a pipe could fill up)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._answer: Answer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [unsealed(word, references=False) for word in words],
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._errors,
                start_new_session=True, env=os.environ | dict(environment or {}),
            )  # fmt: skip
        except OSError as error:
            self._answer = Answer(False, f"{words[0]} cannot be run ({error.strerror})")

    @property
    def answer(self) -> Answer | None:
        """What it said; None as long as it has time."""
        if self._answer is None and self._process is not None:
            if (code := self._process.poll()) is not None:
                self._answer = self._read(code)
            elif time.monotonic() > self._deadline:
                self._answer = Answer(False, f"no answer within {short_seconds(self._most_s)}")
                self.close()
        return self._answer

    def close(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()
        self._errors.close()

    def _read(self, code: int) -> Answer:
        for file in (self._output, self._errors):
            file.seek(0)
        text, errors = (f.read().decode(errors="replace") for f in (self._output, self._errors))
        lines = [line for line in text.splitlines() if line.strip()]
        body: Any = {}
        with suppress(ValueError, IndexError):
            body = json.loads(lines[-1])
        if code == 0:
            return Answer(True, "", body if isinstance(body, dict) else {}, text)
        said = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
        return Answer(False, f"exit code {code}: {said[:_LONGEST_WORDS]}".rstrip(": "), {}, text)


def wait_for_all(inquiries: Sequence[Inquiry], wait: Wait) -> list[Answer] | None:
    """All answers, in order, from inquiries that are closed then; None if somebody wants an end."""
    try:
        while not all(inquiry.answer for inquiry in inquiries):
            if not wait(_LOOK_EVERY_S):
                return None
        return [answer for inquiry in inquiries if (answer := inquiry.answer)]
    finally:
        for inquiry in inquiries:
            inquiry.close()


PROBE_WITHIN_S: Seconds = 120.0
"""A healthy node needs some seconds, nearly all of them to import torch; cold disks take more."""
SIDE = 512
"""Of the matrices, whose entries are small whole numbers: float32 gives the exact product in
whatever order it adds up, with TF32's short factors too."""
PRODUCT_SHA256 = "271906a3ad212dd2276a2e9c15eb744bca30de4fac08f2728db04da58ff330e5"
"""Of the product as little-endian int64, row by row; recomputed in whole numbers by its test."""
_ROUNDS = 20
"""One product may come out right by luck; a warm device errs more often than a cold one."""
_MEMORY: Bytes = 64 << 20
_FILE: Bytes = 4 << 20


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe found."""

    passed: bool
    reason: str = ""
    broken: bool = False
    """The hardware gives wrong numbers, or loses them: another try would prove nothing."""
    figures: Mapping[str, Any] = field(default_factory=dict)


class Unfit(Exception):
    """The node has not passed."""

    def __init__(self, reason: str, broken: bool = False) -> None:
        super().__init__(reason)
        self.broken = broken


def own_words(command: Sequence[str], *arguments: str) -> list[str]:
    """The command line that starts `main` on a node."""
    return [*command, sys.executable, "-m", __name__, *arguments]


def start_probe(command: Sequence[str], folder: Path, slots: int) -> Inquiry:
    """A process that probes a node."""
    return Inquiry(own_words(command, str(folder.resolve()), str(slots)), PROBE_WITHIN_S)


def probe_here(folder: Path, slots: int, wait: Wait) -> Probe | None:
    """Probe this machine; None if somebody wants an end meanwhile."""
    answers = wait_for_all([start_probe((), folder, slots)], wait)
    return probe_of(answers[0]) if answers else None


def probe_of(answer: Answer) -> Probe:
    """What a probe's process said; one that gave no answer has not passed."""
    if not answer.came:
        return Probe(False, answer.reason)
    try:
        known = Probe.__dataclass_fields__.keys()
        return Probe(**{key: value for key, value in answer.body.items() if key in known})
    except TypeError:
        return Probe(False, f"it said {answer.text.strip()[-200:]!r}, no result of a probe")


def check_folder(folder: Path) -> dict[str, float]:
    """Write a file, read it back from the medium as far as the system lets, and remove it."""
    path = folder / f".probe-{os.getpid()}"
    wrote = os.urandom(1 << 16) * (_FILE >> 16)
    began = time.monotonic()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, wrote)
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            read = os.pread(descriptor, _FILE, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Unfit(f"{folder} cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):
            path.unlink()
    if read != wrote:
        raise Unfit(f"{folder} gives back other bytes than were written")
    return {"disk_s": round(time.monotonic() - began, 4)}


def check_memory() -> None:
    """Fill some memory with a pattern and look at it again."""
    try:
        for pattern in (b"\x55", b"\xaa"):
            held = bytearray(pattern) * _MEMORY
            if held.count(pattern) != _MEMORY:
                raise Unfit("memory gives back other bytes than were written", broken=True)
            del held
    except MemoryError as error:
        raise Unfit(f"{_MEMORY >> 20} MiB of memory cannot be had") from error


def factors() -> tuple[list[list[int]], list[list[int]]]:
    """Two matrices of whole numbers from -6 to 6 without a simple pattern."""

    def entry(row: int, column: int, salt: int) -> int:
        return (row * 7919 + column * 104_729 + row * column * salt) % 13 - 6

    first, second = (
        [[entry(row, column, salt) for column in range(SIDE)] for row in range(SIDE)]
        for salt in (31, 57)
    )
    return first, second


def check_product(multiply: Callable[[], bytes], device: str) -> None:
    """Multiply the matrices again and again; the product must be the known one each time."""
    for _ in range(_ROUNDS):
        if hashlib.sha256(multiply()).hexdigest() != PRODUCT_SHA256:
            raise Unfit(f"{device} multiplies matrices wrong", broken=True)


def check_devices(slots: int, has_gpus: bool) -> dict[str, Any]:
    """That torch sees the devices, and that they compute right."""
    try:
        import torch  # here, because supervisors import this file, and never torch
    except ImportError as error:
        raise Unfit(f"torch cannot be imported ({error})") from error
    devices = ["cpu"]
    if has_gpus:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count < slots:
            raise Unfit(f"{count} GPUs can be used, and the node has {slots} slots")
        devices += [f"cuda:{number}" for number in range(count)]
    began = time.monotonic()
    whole = [torch.tensor(factor, dtype=torch.float32) for factor in factors()]
    for device in devices:
        try:
            check_product(partial(_product, *(factor.to(device) for factor in whole)), device)
        except RuntimeError as error:
            raise Unfit(f"{device}: {str(error).splitlines()[0]}") from error
    return {"devices": len(devices), "products_s": round(time.monotonic() - began, 4)}


def _product(first: Any, second: Any) -> bytes:
    return bytes((first @ second).cpu().long().numpy().astype("<i8").tobytes())


def check_ecc(has_gpus: bool) -> dict[str, int]:
    """What GPUs have lost since their last reset, as NVML counts it."""
    corrected, uncorrected = gpu_errors() if has_gpus else (0, 0)
    if uncorrected:
        raise Unfit(f"its GPUs have lost memory {uncorrected} times since their reset", broken=True)
    return {"ecc_corrected": corrected} if has_gpus else {}


ERRORS = "errors"
"""Asks `main` for a node's counters of memory errors."""
_EDAC = "sys/devices/system/edac/mc"
_CORRECTED_LINE = re.compile(r"EDAC \S+ (?P<count>\d+) CE\b")
_HIGH_RATE_LINE = re.compile(r"NVRM: Xid .*: 92,")
HIGH_RATE = 60
"""What one message of a high rate counts: the driver has counted by itself (Xid 92)."""


def corrected_in(messages: str) -> int:
    """Corrected errors that the kernel tells of."""
    counted = sum(int(found["count"]) for found in _CORRECTED_LINE.finditer(messages))
    return counted + HIGH_RATE * len(_HIGH_RATE_LINE.findall(messages))


def host_errors(root: Path = Path("/")) -> tuple[int, int]:
    """Corrected and uncorrected errors of the host's memory since its boot."""
    corrected, uncorrected = (
        sum(_number(path) for path in (root / _EDAC).glob(f"mc*/{name}"))
        for name in ("ce_count", "ue_count")
    )
    return corrected, uncorrected


def gpu_errors() -> tuple[int, int]:
    """Corrected and uncorrected errors of all GPUs since their reset, where NVML counts them."""
    counts = [0, 0]
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 (whatever is missing, there is nothing to count)
        return 0, 0
    try:
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        for number in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(number)
            for place, kind in enumerate(kinds):
                with suppress(nvml.NVMLError):
                    counts[place] += nvml.nvmlDeviceGetTotalEccErrors(
                        device, kind, nvml.NVML_VOLATILE_ECC
                    )
    finally:
        nvml.nvmlShutdown()
    return counts[0], counts[1]


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def main(arguments: Sequence[str]) -> None:
    """Print what was found; without arguments only what the node is known by."""
    if arguments == [ERRORS]:
        counts = zip(host_errors(), gpu_errors(), strict=True)
        print(json.dumps(dict(zip(("corrected", "uncorrected"), map(sum, counts), strict=True))))
        return
    node = read_node()
    if not arguments:
        print(json.dumps({"parts": sorted(node.parts)}))
        return
    folder, slots = Path(arguments[0]), int(arguments[1])
    gpus = any(part.startswith("gpu:") for part in node.parts)
    figures: dict[str, Any] = {}
    found: dict[str, Any] = {"passed": True}
    try:
        figures |= check_folder(folder)
        check_memory()
        figures |= check_ecc(gpus)
        figures |= check_devices(slots, gpus)
    except Unfit as error:
        found = {"passed": False, "reason": str(error), "broken": error.broken}
    print(json.dumps(found | {"figures": figures}))


if __name__ == "__main__":
    main(sys.argv[1:])
