"""Watches a trainer from outside while it trains: stages from the injection points between their
pieces, modules by hooks, reads of the host by wrapping tensors' methods. Nothing of it is there
before the profiled steps, or after them.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from longhaul.core.faults import HANDLERS, Point, register
from longhaul.core.heap import reserve
from longhaul.core.units import Bytes, Seconds
from longhaul.data.batches import Batch
from longhaul.plan.timeline import MODULE, STAGE, WAIT
from longhaul.run.profile.ceilings import wait_for
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

_READING = (
    "item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__float__", "__int__", "__index__",
)  # fmt: skip
"""Methods of a tensor for which the host waits until a GPU has computed it."""
_TABLE_PASSES = 5
"""Rows read and written forward; their gradients read, and rows read and written backward."""
_RECORDED: Bytes = 32 << 20
"""Of a step: what the profiler records, and holes that it leaves; twice what was measured."""
_MOST_RECORDED: Bytes = 1 << 30
_OURS = str(Path(__file__).parents[2])
_NOT_MEANT = (str(Path(torch.__file__).parent), __file__)
"""Where a read is never planted: its line is that of whoever called these."""


class ProfileTaken(Exception):
    """All steps were watched; training ends here."""


class Watch:
    """Watches `steps` steps after `warmup` others, and writes their trace."""

    def __init__(self, warmup: int, steps: int, trace: Path) -> None:
        self.warmup, self.steps, self.trace = warmup, steps, trace
        self.device = torch.device("cpu")
        self.compiled = False
        self.plain_s: Seconds = 0.0
        """Of a step before it was watched: the median of the later half of the warm-up."""
        self.overhead_s: Seconds = 0.0
        """The thread's own time that watching adds to a step; other processes take none of it."""
        self.own_s: Seconds = 0.0
        """The thread's own time of a watched step."""
        self.table_bytes: dict[str, Bytes] = defaultdict(int)
        """What reading rows from each look-up table, and adding to their gradients, must move, in
        all watched steps together."""
        self.gauge_steps = 0
        """Of the watched steps, those that read gauges."""
        self._wall: list[Seconds] = []
        self._own: list[Seconds] = []
        """When each step began, by the clock and by the thread's own time."""
        self._leaving = ExitStack()
        self._stage: record_function | None = None
        self._left = 0
        """Sequences of the batch that no forward pass has seen."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what is trained in the body, which ends by `ProfileTaken`."""
        register(Point.BEFORE_STEP, self._before_step)
        try:
            yield
        finally:
            HANDLERS[Point.BEFORE_STEP].remove(self._before_step)
            self._leaving.close()

    def _before_step(self, trainer: Trainer, step: int) -> None:
        device = trainer.training_step.device
        if step <= self.warmup + 1:
            wait_for(device)
        self._wall.append(time.perf_counter())
        self._own.append(time.thread_time())
        if step == self.warmup + 1:
            self._begin(trainer)
        if step <= self.warmup:
            return
        if step > self.warmup + self.steps:
            wait_for(device)
            self._switch(None)
            self._leaving.close()
            # Half of the warm-up is one: it compiles, and makes what is kept.
            plain = slice(self.warmup // 2, self.warmup)
            self.plain_s = statistics.median(_between(self._wall)[plain])
            own = _between(self._own)
            watched = statistics.median(own[self.warmup :])
            self.overhead_s = max(0.0, watched - statistics.median(own[plain]))
            self.own_s = watched
            raise ProfileTaken
        interval = trainer.settings.monitor.gauge_interval_steps
        self.gauge_steps += interval > 0 and step % interval == 0
        self._switch("data")  # the first thing that a step does is to read its batch

    def _begin(self, trainer: Trainer) -> None:
        self.device, leaving = trainer.training_step.device, self._leaving
        self.compiled = trainer.settings.machine.compile
        if not self.compiled:  # a hook would have the model compiled again, without its graphs
            for hook in self._hooks(trainer.training_step.model):
                leaving.callback(hook.remove)
        leaving.callback(_name_reads(self.device.type))
        gauges = trainer.training_step.model_gauges
        leaving.callback(_in_stage(gauges, "drain", "monitors"))
        leaving.callback(_in_stage(gauges, "see_first", "monitors"))
        leaving.callback(_around_stage(gauges, "watch", "monitors"))
        for point, handler in self._handlers().items():
            register(point, handler)
            leaving.callback(HANDLERS[point].remove, handler)
        if self.device.type == "cpu":  # or new pages would pass for the time of operations
            reserve(min(_RECORDED * self.steps, _MOST_RECORDED))
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities, record_shapes=True)
        leaving.callback(self._end, profiler)
        profiler.start()

    def _end(self, profiler: profile) -> None:
        self._switch(None)
        profiler.stop()
        profiler.export_chrome_trace(str(self.trace))

    def _handlers(self) -> dict[Point, Callable[..., None]]:
        def batch_read(batch: Batch, **context: Any) -> None:
            self._left = len(batch.tokens_BT)
            self._switch("forward")

        def went_forward(loss: Tensor, step: TrainingStep, sequences: int) -> None:
            self._left -= sequences
            self._switch("backward")

        def went_backward(step: TrainingStep) -> None:
            self._switch("forward" if self._left > 0 else "optimizer")

        return {
            Point.BATCH: batch_read,
            Point.LOSS: went_forward,
            Point.BACKWARD: went_backward,
            Point.UPDATED: lambda step: self._switch("monitors"),
        }

    def _switch(self, stage: str | None) -> None:
        if self._stage is not None:
            self._stage.__exit__(None, None, None)
        self._stage = None if stage is None else record_function(STAGE + stage)
        if self._stage is not None:
            self._stage.__enter__()

    def _hooks(self, model: nn.Module) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """A range around the forward pass of each module."""
        for name, module in model.named_modules():
            ranges: list[record_function] = []

            def enter(
                module: nn.Module, given: tuple[Any, ...], name: str = name, ranges: Any = ranges
            ) -> None:
                if isinstance(module, nn.Embedding) and not given[0].is_floating_point():
                    row = module.weight.size(1) * module.weight.element_size()
                    self.table_bytes[name] += _TABLE_PASSES * given[0].numel() * row
                ranges.append(record_function(MODULE + (name or "model")))
                ranges[-1].__enter__()

            def leave(*_: object, ranges: Any = ranges) -> None:
                ranges.pop().__exit__(None, None, None)

            yield module.register_forward_pre_hook(enter)
            yield module.register_forward_hook(leave, always_call=True)


def _between(moments: list[Seconds]) -> list[Seconds]:
    return [after - before for before, after in pairwise(moments)]


def _in_stage(owner: object, method: str, stage: str) -> Callable[[], None]:
    """Let an object's method count as a stage, inside of another; returned is how to end that."""
    original = getattr(owner, method)

    def watched(*given: Any, **named: Any) -> Any:
        with record_function(STAGE + stage):
            return original(*given, **named)

    setattr(owner, method, watched)
    return lambda: delattr(owner, method)


def _around_stage(owner: object, method: str, stage: str) -> Callable[[], None]:
    """The same of a context manager, whose body does not count."""
    original = getattr(owner, method)

    @contextmanager
    def watched(*given: Any, **named: Any) -> Iterator[None]:
        with ExitStack() as inside:
            with record_function(STAGE + stage):
                inside.enter_context(original(*given, **named))
            yield
            with record_function(STAGE + stage):
                inside.close()

    setattr(owner, method, watched)
    return lambda: delattr(owner, method)


def _name_reads(device: str) -> Callable[[], None]:
    """Give every read by the host of a tensor of `device` a range with its line of source."""
    own = {name: Tensor.__dict__.get(name) for name in _READING}
    for name in _READING:
        original = getattr(Tensor, name)

        def reading(tensor: Tensor, *given: Any, original: Any = original, **named: Any) -> Any:
            if tensor.device.type != device:
                return original(tensor, *given, **named)
            with record_function(f"{WAIT}{_line()} ({original.__name__})"):
                return original(tensor, *given, **named)

        setattr(Tensor, name, reading)

    def put_back() -> None:
        for name, method in own.items():
            if method is None:
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, method)

    return put_back


def _line() -> str:
    """The nearest caller's, outside of torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_MEANT):
        frame = frame.f_back
    path = frame.f_code.co_filename
    short = (
        path.removeprefix(f"{_OURS}/") if path.startswith(_OURS) else "/".join(path.split("/")[-2:])
    )
    return f"{short}:{frame.f_lineno}"
