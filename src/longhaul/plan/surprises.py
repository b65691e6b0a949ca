"""What a step spends that its work does not ask for, and what to do. Figures in, sentences out."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from longhaul.core.units import Bytes, Seconds, short_bytes
from longhaul.plan.roofline import PRODUCTS, Ceilings, Work, work_of
from longhaul.plan.timeline import COMPUTING, Operation, Timeline

_LEAST_SHARE = 0.05
"""Of a step, below which a part is nobody's concern."""
_TIMES = 2.0
"""A part that takes so many times what its work would take at the others' pace is a surprise."""
_MOST_HOST = 0.10
"""Share of a step that may go in small operations, or between operations."""
_CONVERSIONS = ("aten::copy_", "aten::_to_copy", "aten::clone", "aten::cat", "Memcpy")
_MOST_CONVERTED = 0.10


@dataclass(frozen=True, slots=True)
class Surprise:
    """One of them."""

    kind: str
    """`module`, `optimizer`, `small operations`, `host wait`, `copies`, or a stage that computes
    nothing: `data`, `idle`, `communication`, `monitors`."""
    subject: str
    seconds: Seconds
    """Lost in an average step."""
    sentence: str
    remedy: str


@dataclass(frozen=True)
class Part:
    """A module with its gradients, layers taken together; or the optimizer."""

    name: str
    seconds: Seconds
    """Of an average step."""
    small: Seconds
    """Of these, in operations too small to keep the device busy."""
    fair: Seconds
    """What the others' work would take at the pace that the rest of the step keeps: their time at
    the roofline, times what the rest takes over the rest's."""
    calls: Mapping[str, Seconds]
    """By operation."""
    needs: Bytes | None = None
    """Bytes that a look-up table must move; None of what is no table."""


@dataclass(frozen=True)
class Seen:
    """What is known beside the trace."""

    overhead_s: Seconds = 0.0
    """The host's own time that watching adds to a step."""
    own_s: Seconds = math.inf
    """The host's own time of a watched step: without waiting, and without what else it computes."""
    plain_s: Seconds = 0.0
    """Of a step that nobody watched."""
    table_bytes: Mapping[str, Bytes] = field(default_factory=dict)
    """What look-ups in each table, and adding to its gradient, must move in all watched steps."""
    gauge_steps: int = 0
    """Of the watched steps, those that read gauges."""
    compiled: bool = False


def undisturbed_s(timeline: Timeline, seen: Seen) -> Seconds:
    """An average step, on a CPU without what the machine computed for others meanwhile."""
    step_s, data_s = timeline.seconds / timeline.steps, timeline.stages["data"] / timeline.steps
    in_all = sum(operation.seconds for operation in timeline.operations) / timeline.steps
    # Where every call of an operation was interrupted, so is its median.
    return step_s if timeline.on_device else min(step_s, max(seen.own_s, in_all) + data_s)


def parts(timeline: Timeline, ceilings: Ceilings, seen: Seen) -> list[Part]:
    """Measured and fair time of each part of the model, the one that takes longest first."""
    measured: dict[str, dict[str, Seconds]] = defaultdict(lambda: defaultdict(float))
    ideal: dict[str, Seconds] = defaultdict(float)
    small: dict[str, Seconds] = defaultdict(float)
    needs: dict[str, Bytes] = defaultdict(int)
    for operation in timeline.operations:
        if name := _part_of(operation):
            seconds = operation.seconds / timeline.steps
            measured[name][operation.name] += seconds
            least, bound = ceilings.attainable(work_of(operation))
            if bound == "launch":
                small[name] += seconds
            else:
                ideal[name] += least / timeline.steps
    for module, size in seen.table_bytes.items():
        needs[_without_layer(module)] += size // timeline.steps
    for name, size in needs.items():
        # Whatever it does instead of reading rows, rows are all that it has to read.
        ideal[name] = ceilings.attainable(Work(0.0, size, ""))[0]
    large = {name: sum(calls.values()) - small[name] for name, calls in measured.items()}
    made = []
    for name, calls in measured.items():
        others, least = sum(large.values()) - large[name], sum(ideal.values()) - ideal[name]
        pace = others / least if least > 0 else 1.0
        fair = max(pace, 1.0) * ideal[name]
        made.append(
            Part(name, large[name] + small[name], small[name], fair, dict(calls), needs.get(name))
        )
    return sorted(made, key=lambda part: -part.seconds)


def surprises(
    timeline: Timeline, made: list[Part], made_step_s: Seconds, ceilings: Ceilings, seen: Seen
) -> list[Surprise]:
    """All of them, the most expensive first; `made_step_s` is a step of the parts."""
    found = [
        *_of_parts(made, made_step_s),
        *_of_waits(timeline),
        *_of_stages(timeline),
        *_of_host(timeline, ceilings, seen),
        *_of_copies(timeline, undisturbed_s(timeline, seen)),
    ]
    return sorted(found, key=lambda surprise: -surprise.seconds)


def _of_parts(made: list[Part], step_s: Seconds) -> Iterator[Surprise]:
    for part in made:
        lost = part.seconds - part.small - part.fair
        if lost < _LEAST_SHARE * step_s or part.seconds - part.small < _TIMES * part.fair:
            continue
        operation, most = max(part.calls.items(), key=lambda item: item[1])
        within = most / part.seconds
        kind = "optimizer" if part.name == "optimizer" else "module"
        what = f"module `{part.name}`" if kind == "module" else "the optimizer"
        by = "its work"
        if part.needs is not None:
            what = f"look-up table `{part.name}`"
            by = f"its work, {short_bytes(part.needs)} of rows,"
        sentence = (
            f"{what} takes {part.seconds / step_s:.0%} of the step ({short_time(part.seconds)}), "
            f"of which {by} explains {part.fair / step_s:.1%}; {within:.0%} of it is "
            f"{plain(operation)}"
        )
        yield Surprise(kind, part.name, lost, sentence, _remedy(part, operation))


def _remedy(part: Part, operation: str) -> str:
    multiplied = any(name.rpartition("::")[2] in PRODUCTS for name in part.calls)
    if part.needs is not None and multiplied:
        return (
            "read rows by their numbers (functional.embedding), not by a product with one-hot rows"
        )
    if part.needs is not None:
        return (
            "its gradient is as large as the whole table: add the rows that were read in place "
            "(model/weights.py), or make fewer, larger micro-batches (batch.micro_sequences)"
        )
    if part.name == "optimizer":
        return (
            "spread an update over more tokens (batch.sequences), keep its state on the device "
            "(optim.offload=false), or take a cheaper rule (optim.name)"
        )
    return f"look at {plain(operation)} of `{part.name}` in the trace, or compile (machine.compile)"


def _of_waits(timeline: Timeline) -> Iterator[Surprise]:
    times: Counter[str] = Counter(wait.where for wait in timeline.waits)
    for where, number in times.items():
        own = [wait for wait in timeline.waits if wait.where == where]
        lost = sum(wait.seconds for wait in own) / timeline.steps
        stages = " and ".join(dict.fromkeys(wait.stage for wait in own))
        price = f"which idles {short_time(lost)} of it" if timeline.on_device else (
            f"{short_time(lost)} here; a GPU would run dry each time"
        )  # fmt: skip
        sentence = (
            f"the host reads a value of the device {number / timeline.steps:,.3g} times a step at "
            f"{where}, in the {stages} stage: {price}"
        )
        remedy = (
            "keep it a tensor on the device (torch.where, masks), or read it once, after the step, "
            "as gauges are"
        )
        yield Surprise("host wait", where, lost, sentence, remedy)


_STAGES = {
    "data": (
        0.02, "the step waits for its batch",
        "prepare the text onto a local disk (--prepared-dir), and look for what makes reading slow",
    ),
    "monitors": (
        0.03, "between steps, records are judged and written, and gauges are read",
        "read gauges less often (monitor.gauge_interval_steps), or write the run to a faster disk",
    ),
    "communication": (
        0.10, "collectives run while nothing is computed",
        "shard within a node (parallel.shard), or raise batch.micro_sequences",
    ),
}  # fmt: skip
"""Stages that compute nothing: the share of a step that they may take, what they are, a remedy."""


def _of_stages(timeline: Timeline) -> Iterator[Surprise]:
    for stage, (most, what, remedy) in _STAGES.items():
        share = timeline.stages[stage] / timeline.seconds
        if share > most:
            seconds = timeline.stages[stage] / timeline.steps
            sentence = f"{what}: {share:.0%} of the step ({short_time(seconds)})"
            yield Surprise(stage, stage, seconds, sentence, remedy)


def _of_host(timeline: Timeline, ceilings: Ceilings, seen: Seen) -> Iterator[Surprise]:
    """What is lost because the host is slower than the work it gives out."""
    step_s = undisturbed_s(timeline, seen)
    computing = [o for o in timeline.operations if o.stage in COMPUTING and o.seconds]
    small = [o for o in computing if ceilings.attainable(work_of(o))[1] == "launch"]
    in_small = sum(operation.seconds for operation in small) / timeline.steps
    idle, number = timeline.stages["idle"] / timeline.steps, len(small) / timeline.steps
    if not timeline.on_device:
        in_all = sum(operation.seconds for operation in timeline.operations) / timeline.steps
        idle = min(idle, max(0.0, seen.own_s - in_all))
        # Watching is done by the host, between operations and in each.
        kept = max(0.0, 1.0 - seen.overhead_s / max(idle + in_small, 1e-12))
        idle, in_small = kept * idle, kept * in_small
    larger = "make micro-batches larger (batch.micro_sequences)"
    remedy = larger if seen.compiled else f"compile (machine.compile=true), or {larger}"
    if in_small > _MOST_HOST * step_s:
        sentence = (
            f"{number:,.0f} operations a step are too small to keep the device busy: "
            f"{in_small / step_s:.0%} of the step ({short_time(in_small)}), "
            f"{short_time(in_small / number)} each"
        )
        yield Surprise("small operations", "small operations", in_small, sentence, remedy)
    if idle > _MOST_HOST * step_s:
        who = "the device waits for the host" if timeline.on_device else "Python runs"
        sentence = (
            f"{who} between {len(computing) / timeline.steps:,.0f} operations: {idle / step_s:.0%} "
            f"of the step ({short_time(idle)})"
        )
        yield Surprise("idle", "idle", idle, sentence, remedy)


def _of_copies(timeline: Timeline, step_s: Seconds) -> Iterator[Surprise]:
    own = [
        o for o in timeline.operations if o.name.startswith(_CONVERSIONS) and o.stage in COMPUTING
    ]
    seconds = sum(operation.seconds for operation in own) / timeline.steps
    share = seconds / step_s
    if share > _MOST_CONVERTED:
        where: dict[str, Seconds] = defaultdict(float)
        for operation in own:
            where[_part_of(operation) or operation.stage] += operation.seconds
        part, most = max(where.items(), key=lambda item: item[1])
        number, within = len(own) / timeline.steps, most / sum(where.values())
        sentence = (
            f"numbers are copied or converted {number:,.0f} times a step: {share:.0%} of it "
            f"({short_time(seconds)}), {within:.0%} in `{part}`"
        )
        remedy = (
            "compile (machine.compile=true), or keep numbers in one format "
            "(precision.compute, precision.half_weights)"
        )
        yield Surprise("copies", "copies", seconds, sentence, remedy)


def _part_of(operation: Operation) -> str:
    if operation.stage in ("forward", "backward") and operation.module:
        return _without_layer(operation.module)
    return "optimizer" if operation.stage == "optimizer" else ""


def _without_layer(module: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", module)


def plain(operation: str) -> str:
    """An operation's name without what is the same of all."""
    return operation.removeprefix("autograd::engine::evaluate_function: ").removeprefix("aten::")


def short_time(seconds: Seconds) -> str:
    """0.0123 → '12.3 ms'."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
