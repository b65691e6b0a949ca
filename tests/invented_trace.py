"""Traces that nobody recorded, event by event, in milliseconds."""

from typing import Any

from longhaul.plan.timeline import MODULE, STAGE

Event = dict[str, Any]


def span(cat: str, name: str, begin: float, end: float, thread: int = 1, **args: Any) -> Event:
    """One event; arguments as the trace names them, with `_` for a space."""
    given = {name.replace("_", " "): value for name, value in args.items()}
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 7, "tid": thread, "ts": 1e3 * begin + 5e9,
        "dur": 1e3 * (end - begin), "args": given,
    }  # fmt: skip


def stage(name: str, begin: float, end: float) -> Event:
    return span("user_annotation", STAGE + name, begin, end)


def module(name: str, begin: float, end: float) -> Event:
    return span("user_annotation", MODULE + name, begin, end)


def op(name: str, begin: float, end: float, *shapes: list[int], **args: Any) -> Event:
    """An operation on float32 tensors."""
    dims = {"Input_Dims": list(shapes), "Input_type": ["float"] * len(shapes)}
    return span("cpu_op", name, begin, end, **({"thread": 1} | dims | args))


def kernel(name: str, begin: float, end: float, correlation: int, stream: int = 7) -> Event:
    return span("kernel", name, begin, end, thread=stream, correlation=correlation)


def launch(begin: float, correlation: int, thread: int = 1) -> Event:
    return span(
        "cuda_runtime", "cudaLaunchKernel", begin, begin + 0.01, thread, correlation=correlation
    )
