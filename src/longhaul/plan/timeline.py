"""A trace of torch's profiler taken apart: the stage, module and operation of every moment.

Events are those of the trace file (Chrome's format); nothing is known here of torch.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from longhaul.core.units import Seconds

STAGES = ("forward", "backward", "optimizer", "data", "communication", "monitors", "idle")
COMPUTING = ("forward", "backward", "optimizer")
STAGE, MODULE, WAIT = "longhaul/stage/", "longhaul/module/", "longhaul/wait/"
"""What `watch.py` begins the names of its ranges with: a stage; a module's forward pass; a call by
which the host waits, with its line of source."""

_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_NODE = "autograd::engine::evaluate_function"
_COLLECTIVE = re.compile(
    r"nccl|gloo|c10d::|_c10d_functional::|record_param_comms|all_?reduce|all_?gather|"
    r"reduce_?scatter|all_?to_?all", re.IGNORECASE,
)  # fmt: skip
_DEVICE_WAITS = re.compile(
    r"cuda(Stream|Device|Event)Synchronize|cu(Stream|Ctx)Synchronize|cudaMemcpy$"
)
_HOST_WAITS = ("aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal")

_SPIKE = 3.0
"""A call that takes so many times the median of its like was interrupted, by whatever else runs."""

_EXACT_S: Seconds = 2e-9

Interval = tuple[Seconds, Seconds, str]
"""Begin, end, label."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call that kept the device busy (on a CPU: the training thread)."""

    name: str
    stage: str
    module: str
    """The innermost module, in whose forward pass it lies, or whose gradient it is; or empty."""
    seconds: Seconds
    """Without what it called, and without interruptions."""
    shapes: tuple[Any, ...] = ()
    """Of its arguments; a list of shapes where one is a list of tensors."""
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostWait:
    """A call inside the step that reads a value on the host."""

    where: str
    """Its line of source, or the operation and its module."""
    stage: str
    seconds: Seconds
    """CPU: the call's own; else the device's idle time until the host has queued more work."""


@dataclass(frozen=True)
class Timeline:
    """Some steps, from the first one's beginning to the last one's end."""

    steps: int
    seconds: Seconds
    stages: Mapping[str, Seconds]
    """They add up to `seconds`."""
    operations: Sequence[Operation]
    waits: Sequence[HostWait]
    on_device: bool
    """Times of operations are a device's; else the training thread's own."""


@dataclass(eq=False)
class _Span:
    name: str
    kind: str
    thread: Any
    begin: Seconds
    end: Seconds
    args: Mapping[str, Any]
    parent: "_Span | None" = None
    inner_s: Seconds = 0.0
    """Of what it called."""
    module: str = ""

    @property
    def own_s(self) -> Seconds:
        return max(0.0, self.end - self.begin - self.inner_s)

    def above(self) -> Iterator["_Span"]:
        """It and all that it was called by, innermost first."""
        span: _Span | None = self
        while span is not None:
            yield span
            span = span.parent


class _Host:
    """What the threads of the host did, in order of time."""

    def __init__(self, spans: list[_Span]) -> None:
        self.spans = spans
        self.marks = [span for span in spans if span.name.startswith(STAGE)]
        self._begins = [mark.begin for mark in self.marks]
        self.launches = {
            span.args["correlation"]: span
            for span in spans
            if span.kind in ("cuda_runtime", "cuda_driver") and "correlation" in span.args
        }

    def stage_of(self, span: _Span) -> str:
        """By its moment: backward passes on a device have a thread of their own."""
        place = bisect_right(self._begins, span.begin) - 1
        while place >= 0 and self.marks[place].end <= span.begin:  # one that lies inside another
            place -= 1
        return self.marks[place].name.removeprefix(STAGE) if place >= 0 else "idle"


def timeline(events: Iterable[Mapping[str, Any]]) -> Timeline:
    """Sort out the steps of a trace. ValueError if it holds no range of `watch.py`'s."""
    spans = [_span(event) for event in events if event.get("ph") == "X"]
    host = _Host(sorted((s for s in spans if s.kind in _HOST), key=lambda s: (s.begin, -s.end)))
    if not host.marks:
        raise ValueError("the trace holds no stage of a step")
    _nest(host.spans)
    _name_modules(host.spans)
    began, ended = host.marks[0].begin, max(mark.end for mark in host.marks)
    device = sorted(
        (s for s in spans if s.kind in _DEVICE and s.end > began), key=lambda span: span.begin
    )
    if device:
        ended = max(ended, max(span.end for span in device))
        operations, busy = _of_device(host, device)
    else:
        operations, busy = _of_thread(host)
    collective = [span for span in busy if span[2] == "communication"]
    other = [span for span in busy if span[2] != "communication"]
    waiting = [
        (mark.begin, mark.end, mark.name.removeprefix(STAGE))
        for mark in host.marks if mark.name.removeprefix(STAGE) in ("data", "monitors")
    ]  # fmt: skip
    # Collectives beside computing cost nothing. On a CPU all of reading and judging counts.
    layers = [other, collective, waiting] if device else [collective, waiting, other]
    stages, free = dict.fromkeys(STAGES, 0.0), [(began, ended)]
    for layer in layers:
        free = _paint(stages, free, layer)
    stages["idle"] += sum(end - begin for begin, end in free)
    gaps = _paint({}, [(began, ended)], busy) if device else None
    steps = sum(mark.name == f"{STAGE}data" for mark in host.marks)
    waits = list(_waits(host, gaps))
    return Timeline(steps, ended - began, stages, _uninterrupted(operations), waits, bool(device))


def alike(operations: Iterable[Operation]) -> dict[tuple[str, str], list[Operation]]:
    """Calls of one operation on the same shapes."""
    grouped: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for operation in operations:
        grouped[operation.name, shapes_text(operation.shapes)].append(operation)
    return grouped


def shapes_text(shapes: Iterable[Any]) -> str:
    """Tensors' shapes, `128×64 64×192`; of a list how many there are."""
    return " ".join(
        f"{len(shape)} tensors" if isinstance(shape[0], list | tuple) else "×".join(map(str, shape))
        for shape in shapes
        if shape
    )


def _uninterrupted(operations: Iterable[Operation]) -> list[Operation]:
    made = []
    for calls in alike(operations).values():
        most = _SPIKE * median(call.seconds for call in calls)
        made += [replace(call, seconds=min(call.seconds, most)) for call in calls]
    return made


def _span(event: Mapping[str, Any]) -> _Span:
    begin = float(event["ts"]) * 1e-6
    thread = (event.get("pid"), event.get("tid"))
    end = begin + float(event.get("dur", 0.0)) * 1e-6
    return _Span(
        str(event["name"]), str(event.get("cat")), thread, begin, end, event.get("args", {})
    )


def _nest(spans: Iterable[_Span]) -> None:
    """Find out what called what, thread by thread; `spans` in order of time."""
    stacks: dict[Any, list[_Span]] = {}
    for span in spans:
        stack = stacks.setdefault(span.thread, [])
        # What ends before it does, as far as ends are exact, did not call it.
        while stack and (stack[-1].end <= span.begin or stack[-1].end < span.end - _EXACT_S):
            stack.pop()
        if stack:
            span.parent = stack[-1]
            span.parent.inner_s += span.end - span.begin
        stack.append(span)


def _name_modules(spans: Iterable[_Span]) -> None:
    """An operation of a backward pass belongs where the one of the same sequence number did.

    Torch numbers what it will differentiate; of several operations with one number the last made
    the node. Adding a gradient up has no number of its own, and follows the node that handed it on.
    """
    made_in: dict[Any, str] = {}
    before: dict[Any, str] = {}
    for span in spans:
        number = span.args.get("Sequence number")
        if span.name.startswith(MODULE):
            span.module = span.name.removeprefix(MODULE)
        elif span.name.startswith(_NODE):
            span.module = made_in.get(number, before.get(span.thread, ""))
            before[span.thread] = span.module
        elif span.parent is not None:
            span.module = span.parent.module
        if number is not None and not span.args.get("Fwd thread id"):
            made_in[number] = span.module


def _of_thread(host: _Host) -> tuple[list[Operation], list[Interval]]:
    """On a CPU: what the training thread computed."""
    thread = host.marks[0].thread
    operations, busy = [], []
    for span in host.spans:
        if span.thread != thread or span.kind != "cpu_op":
            continue
        stage = host.stage_of(span)
        if _COLLECTIVE.search(span.name):
            busy.append((span.begin, span.end, "communication"))
        elif not any(outer.kind == "cpu_op" for outer in span.above() if outer is not span):
            busy.append((span.begin, span.end, stage))
        operations.append(_operation(span, stage, span.own_s))
    return operations, busy


def _of_device(host: _Host, device: Iterable[_Span]) -> tuple[list[Operation], list[Interval]]:
    """Kernels, each by the operation of the host that launched it."""
    operations, busy = [], []
    for kernel in device:
        launch = host.launches.get(kernel.args.get("correlation"))
        stage = "idle" if launch is None else host.stage_of(launch)
        if stage == "idle":  # before the first range, or of nobody's
            stage = "monitors"
        if _COLLECTIVE.search(kernel.name):
            stage = "communication"
        above = () if launch is None else launch.above()
        by = next((span for span in above if span.kind == "cpu_op"), kernel)
        operations.append(_operation(by, stage, kernel.end - kernel.begin))
        busy.append((kernel.begin, kernel.end, stage))
    return operations, busy


def _operation(span: _Span, stage: str, seconds: Seconds) -> Operation:
    shapes, types = span.args.get("Input Dims", ()), span.args.get("Input type", ())
    return Operation(span.name, stage, span.module, seconds, tuple(shapes), tuple(types))


def _paint(
    totals: dict[str, Seconds], free: Sequence[tuple[Seconds, Seconds]], layer: Iterable[Interval]
) -> list[tuple[Seconds, Seconds]]:
    """Give free time to a layer's labels, an overlap to the first; what is free still."""
    left: list[tuple[Seconds, Seconds]] = []
    wanted, at = sorted(layer), 0
    for begin, end in free:
        while at < len(wanted) and begin < end:
            first, last, label = wanted[at]
            if first >= end:
                break
            if last <= begin:
                at += 1
                continue
            if first > begin:
                left.append((begin, first))
            begin, until = max(begin, first), min(last, end)
            totals[label] = totals.get(label, 0.0) + until - begin
            begin = until
        if begin < end:
            left.append((begin, end))
    return left


def _waits(host: _Host, gaps: Sequence[tuple[Seconds, Seconds]] | None) -> Iterator[HostWait]:
    """Calls inside the step by which the host waits; `gaps` of the device, None on a CPU."""
    counted: set[int] = set()
    begins = [begin for begin, _ in gaps or ()]
    for span in host.spans:
        above = list(span.above())[1:]
        if any(outer.name.startswith(WAIT) for outer in above):
            continue
        where = span.name.removeprefix(WAIT)
        if where == span.name:
            called = next((outer for outer in above if outer.kind == "cpu_op"), None)
            by_device = gaps is not None and _DEVICE_WAITS.match(span.name)
            # What an operation of torch's own reads on a CPU is no reading on a device.
            if not by_device and (span.name not in _HOST_WAITS or called is not None):
                continue
            operation = span.name if called is None else called.name
            where = f"{operation} in {span.module}" if span.module else operation
        stage = host.stage_of(span)
        if stage not in COMPUTING:
            continue
        lost = span.inner_s if span.inner_s and span.kind == "user_annotation" else span.own_s
        if gaps is not None:
            place, lost = bisect_right(begins, span.end) - 1, 0.0
            if place >= 0 and place not in counted and gaps[place][1] >= span.end:
                counted.add(place)
                lost = gaps[place][1] - gaps[place][0]
        yield HostWait(where, stage, lost)
