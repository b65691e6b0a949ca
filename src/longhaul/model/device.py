"""A device as a thread of the host sees it: which one it means, how far that is, what it draws.

CUDA keeps for every thread the device that it means, device 0 at first, where half a gigabyte goes
for a context, or another replica's generator is seeded. So a process claims its device before
anything is computed; what records, waits or draws names it; and a helper thread works within `on`.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

_CPU = torch.device("cpu")
_ONE_QUEUE = ("cpu", "meta", "mps")
"""Kinds that compute while the host waits, or that have one queue and no events of ours."""


def queues(device: torch.device) -> bool:
    """Whether the host queues work there and goes on: with streams, events, asynchronous copies."""
    return device.type not in _ONE_QUEUE


def claim(device: torch.device) -> torch.device:
    """Make `device` the one that this thread means from now on; the same, with its number."""
    if not queues(device):
        return device
    module = torch.get_device_module(device)
    number = module.current_device() if device.index is None else device.index
    module.set_device(number)
    return torch.device(device.type, number)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """In the body, this thread means `device`."""
    if not queues(device):
        return nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return context


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on the device: itself if it is there, or else a copy that nobody waits for."""
    if tensor.device == device or not queues(device):
        return tensor.to(device)
    return page_locked(tensor, device).to(device, non_blocking=True)


def page_locked(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` of the host where the device reads by itself: itself if it is there, or a copy."""
    if not queues(device) or (tensor.is_contiguous() and tensor.is_pinned()):
        return tensor
    with on(device):
        return tensor.contiguous().pin_memory()


class Mark:
    """A point in a device's current stream: reached once everything queued before it is done."""

    def __init__(self, device: torch.device, timing: bool = False) -> None:
        self._device = device
        self._module = torch.get_device_module(device)
        with on(device):
            self._event = self._module.Event(enable_timing=timing)

    def record(self) -> "Mark":
        """Stand at the end of what is queued now; itself."""
        with on(self._device):
            self._event.record(self._module.current_stream(self._device))
        return self

    def query(self) -> bool:
        """Whether the device is so far; never waits."""
        with on(self._device):
            return bool(self._event.query())

    def synchronize(self) -> None:
        """Wait for it, on whatever thread."""
        with on(self._device):
            self._event.synchronize()

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds between two that were reached; both are timed."""
        with on(self._device):
            return float(self._event.elapsed_time(end._event))


class SideStream:
    """A second stream of a device, made when it is first used, for copies beside what is computed
    on the current one; nothing where there is no queue.
    """

    def __init__(self) -> None:
        self._device = _CPU
        self._stream: Any = None
        self._read: tuple[torch.Tensor, ...] = ()
        """What may still be copied from: nothing else may be given its memory."""

    @contextmanager
    def reading(self, tensors: Iterable[torch.Tensor], device: torch.device) -> Iterator[None]:
        """Copies of `tensors` that the body queues run here, behind all that is queued on the
        current stream by now; later work there waits for them from `join` on.
        """
        if not queues(device):
            yield
            return
        module = torch.get_device_module(device)
        with on(device):
            if self._stream is None:
                self._device, self._stream = device, module.Stream(device)
            self._stream.wait_stream(module.current_stream(device))
            self._read = tuple(tensors)
            with module.stream(self._stream):
                yield

    def join(self) -> None:
        """Later work on the current stream waits for the copies, and may change what they read; the
        host does not wait.
        """
        if self._read:
            with on(self._device):
                current = torch.get_device_module(self._device).current_stream(self._device)
                current.wait_stream(self._stream)
        self._read = ()


def wait_for(device: torch.device) -> None:
    """Wait for everything that is queued on a device, if it has a queue."""
    if queues(device):
        torch.get_device_module(device).synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def key_generators(key: int, device: torch.device) -> None:
    """Seed the host's generator and the device's, as `torch.manual_seed` would. That function also
    leaves word for absent accelerators, with a stack trace: 0.1 ms, at every micro-batch.
    """
    torch.default_generator.manual_seed(key)
    if device.type != "cpu":
        with on(device):
            torch.get_device_module(device).manual_seed(key)


def generator_states(device: torch.device) -> list[torch.Tensor]:
    """On the host: the host's, and the device's if it has its own."""
    states = [torch.default_generator.get_state()]
    if device.type != "cpu":
        with on(device):
            states.append(torch.get_device_module(device).get_rng_state())
    return states


def put_back_generators(states: list[torch.Tensor], device: torch.device) -> None:
    """As `generator_states` gave them."""
    torch.default_generator.set_state(states[0])
    if device.type != "cpu":
        with on(device):
            torch.get_device_module(device).set_rng_state(states[1])
