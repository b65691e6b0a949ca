"""Watches a trainer from outside while it trains: stages from the injection points between their
pieces, modules by hooks, reads of the host by wrapping tensors' methods. Nothing of it is there
before the profiled steps, or after them.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch  # replaces methods, and puts them back as they were

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from longhaul.config.recipe import Recipe
from longhaul.core.faults import HANDLERS, Point, register
from longhaul.core.heap import reserve
from longhaul.core.units import Bytes, Seconds
from longhaul.data.batches import Batch
from longhaul.model.device import wait_for
from longhaul.plan.surprises import Seen
from longhaul.plan.timeline import MODULE, STAGE, WAIT
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
        self.seen = Seen()
        """Once all steps were watched."""
        self._table_bytes: dict[str, Bytes] = defaultdict(int)
        self._wall: list[Seconds] = []
        self._own: list[Seconds] = []
        """When each step began, by the clock and by the thread's own time."""
        self._leaving, self._stage = ExitStack(), ExitStack()
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
            self.seen = self._what_was_seen(trainer.settings)
            raise ProfileTaken
        self._switch("data")  # the first thing that a step does is to read its batch

    def _what_was_seen(self, recipe: Recipe) -> Seen:
        # Half of the warm-up is one: it compiles, and makes what is kept.
        plain = slice(self.warmup // 2, self.warmup)
        own, interval = _between(self._own), recipe.monitor.gauge_interval_steps
        watched = statistics.median(own[self.warmup :])
        steps = range(self.warmup + 1, self.warmup + self.steps + 1)
        return Seen(
            overhead_s=max(0.0, watched - statistics.median(own[plain])),
            own_s=watched,
            plain_s=statistics.median(_between(self._wall)[plain]),
            table_bytes=self._table_bytes,
            gauge_steps=sum(interval > 0 and step % interval == 0 for step in steps),
            compiled=recipe.machine.compiles,
        )

    def _begin(self, trainer: Trainer) -> None:
        self.device, leaving = trainer.training_step.device, self._leaving
        if not trainer.settings.machine.compiles:
            # A hook would have the model compiled again, without its graphs.
            for hook in self._hooks(trainer.training_step.model):
                leaving.callback(hook.remove)
        for named in _named_reads(self.device.type):
            leaving.enter_context(named)
        gauges = trainer.training_step.model_gauges
        for method in ("drain", "see_first"):
            leaving.enter_context(_monitoring(gauges, method))
        leaving.enter_context(_monitoring_around(gauges, "watch"))
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
        self._stage.close()
        if stage is not None:
            self._stage.enter_context(record_function(STAGE + stage))

    def _hooks(self, model: nn.Module) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """A range around the forward pass of each module."""
        for name, module in model.named_modules():
            ranges: list[record_function] = []

            def enter(
                module: nn.Module, given: tuple[Any, ...], name: str = name, ranges: Any = ranges
            ) -> None:
                if isinstance(module, nn.Embedding) and not given[0].is_floating_point():
                    row = module.weight.size(1) * module.weight.element_size()
                    self._table_bytes[name] += _TABLE_PASSES * given[0].numel() * row
                ranges.append(record_function(MODULE + (name or "model")))
                ranges[-1].__enter__()

            def leave(*_: object, ranges: Any = ranges) -> None:
                ranges.pop().__exit__(None, None, None)

            yield module.register_forward_pre_hook(enter)
            yield module.register_forward_hook(leave, always_call=True)


def _between(moments: list[Seconds]) -> list[Seconds]:
    return [after - before for before, after in pairwise(moments)]


def _monitoring(owner: object, method: str) -> AbstractContextManager[object]:
    """In the body, an object's method counts as the stage `monitors`, inside of another."""
    original = getattr(owner, method)

    def watched(*given: Any, **named: Any) -> Any:
        with record_function(f"{STAGE}monitors"):
            return original(*given, **named)

    return patch.object(owner, method, watched)


def _monitoring_around(owner: object, method: str) -> AbstractContextManager[object]:
    """The same of a method that gives a context manager, whose body does not count."""
    original = getattr(owner, method)

    @contextmanager
    def watched(*given: Any, **named: Any) -> Iterator[None]:
        with ExitStack() as inside:
            with record_function(f"{STAGE}monitors"):
                inside.enter_context(original(*given, **named))
            yield
            with record_function(f"{STAGE}monitors"):
                inside.close()

    return patch.object(owner, method, watched)


def _named_reads(device: str) -> Iterator[AbstractContextManager[object]]:
    """In their bodies, reads by the host of a tensor of `device` have ranges with their line."""
    for name in _READING:
        original = getattr(Tensor, name)

        def reading(tensor: Tensor, *given: Any, original: Any = original, **named: Any) -> Any:
            if tensor.device.type != device:
                return original(tensor, *given, **named)
            with record_function(f"{WAIT}{_line()} ({original.__name__})"):
                return original(tensor, *given, **named)

        yield patch.object(Tensor, name, reading)


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
