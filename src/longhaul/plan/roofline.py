"""What an operation should take on a device: the longer of computing and of moving its bytes
(Williams et al., 2009), by ceilings that were measured on that very device.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from longhaul.core.units import Bytes, Seconds
from longhaul.plan.timeline import Operation, Timeline, alike

Bound = Literal["compute", "memory", "launch"]
_SIZES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4,
    "short int": 2, "bool": 1, "unsigned char": 1, "signed char": 1, "TensorList": 4,
}  # fmt: skip
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "_linear_pointwise", "mkldnn_linear")
_MOVES_NOTHING = (
    "view", "_unsafe_view", "reshape", "transpose", "t", "slice", "select", "expand", "permute",
    "as_strided", "detach", "detach_", "split", "split_with_sizes", "chunk", "narrow", "unsqueeze",
    "squeeze", "empty", "empty_like", "empty_strided", "new_empty", "result_type", "resolve_conj",
    "resolve_neg", "unbind", "alias", "lift_fresh", "item", "_local_scalar_dense", "flatten",
    "new_empty_strided", "set_", "resize_", "to", "contiguous", "mT", "unflatten", "is_nonzero",
)  # fmt: skip
_ROWS = ("index_select", "embedding", "gather", "index", "take")
_ADDED_ROWS = ("index_add_", "index_put_", "_index_put_impl_", "scatter_add_", "scatter_")
_WRITES_ONLY = ("zero_", "fill_", "zeros", "ones", "full", "bernoulli_", "normal_", "uniform_")
_READS_ONLY = (
    "sum", "mean", "norm", "linalg_vector_norm", "_foreach_norm", "amax", "amin", "aminmax", "max",
    "min", "all", "any", "argmax", "logsumexp", "nll_loss_forward",
)  # fmt: skip
_numel = math.prod
_BACKWARD_PRODUCTS = 2.5
"""Attention computes its scores once more for its gradient: five products against two."""


@dataclass(frozen=True, slots=True)
class Work:
    """Of one call, by the shapes of its arguments."""

    flops: float
    bytes: float
    dtype: str


@dataclass(frozen=True)
class Ceilings:
    """What a device reaches, measured."""

    device: str
    flops: Mapping[str, float]
    """FLOP/s of a large matrix product, by type of number."""
    copies: Sequence[tuple[Bytes, Seconds]]
    """Bytes that a copy reads and writes, rising, and the time that it takes. Small ones stay in
    caches; the smallest takes what it takes to begin anything at all."""

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the largest copy."""
        largest, seconds = self.copies[-1]
        return largest / seconds

    def copy_s(self, size: float) -> Seconds:
        """What moving so many bytes takes, between two measured sizes by a power law."""
        if size <= self.copies[0][0]:
            return self.copies[0][1]
        for (below, fast), (above, slow) in zip(self.copies, self.copies[1:], strict=False):
            if size <= above:
                share = math.log(size / below) / math.log(above / below)
                return float(fast * (slow / fast) ** share)
        return size / self.bandwidth

    def attainable(self, work: Work) -> tuple[Seconds, Bound]:
        """The least that the work takes here, and what keeps it from taking less."""
        rate = self.flops.get(work.dtype) or max(self.flops.values(), default=math.inf)
        computing_s, moving_s = work.flops / rate, self.copy_s(work.bytes)
        if computing_s > moving_s:
            return computing_s, "compute"
        return moving_s, "launch" if moving_s < 2 * self.copies[0][1] else "memory"


@dataclass(frozen=True)
class Row:
    """All calls of one operation on the same shapes, of an average step."""

    name: str
    shapes: str
    calls: float
    seconds: Seconds
    share: float
    """Of the step."""
    flops: float
    """Of one call, as the bytes are."""
    bytes: float
    attainable: Seconds
    """Of all calls, at the roofline."""
    bound: Bound

    @property
    def achieved(self) -> float:
        """Share of the roofline; what a cache holds already may be beyond it."""
        return self.attainable / self.seconds if self.seconds else 0.0


def rows(timeline: Timeline, ceilings: Ceilings) -> list[Row]:
    """Every operation against its roofline, the one that takes longest first."""
    made, step_s = [], timeline.seconds / timeline.steps
    for (name, shapes), calls in alike(timeline.operations).items():
        seconds, work = sum(call.seconds for call in calls) / timeline.steps, work_of(calls[0])
        least, bound = ceilings.attainable(work)
        number = len(calls) / timeline.steps
        attainable = number * least if work.bytes else 0.0
        made.append(
            Row(name, shapes, number, seconds, seconds / step_s, work.flops, work.bytes, attainable,
                bound)
        )  # fmt: skip
    return sorted(made, key=lambda row: -row.seconds)


def work_of(operation: Operation) -> Work:
    """FLOPs and bytes of a call. Element by element nothing but bytes counts: no device here
    computes a sum slower than it reads the terms.
    """
    name = operation.name.rpartition("::")[2]
    tensors = list(_tensors(operation))
    if not tensors or name in _MOVES_NOTHING or "evaluate_function" in operation.name:
        return Work(0.0, 0.0, "")
    sizes = [_numel(shape) * each for shape, each, _ in tensors]
    if name in PRODUCTS:
        return _product(name, tensors)
    if "attention" in name and len(tensors[0][0]) == 4:
        return _attention(name, tensors)
    if name == "index_select" or name == "embedding":
        moved = 2 * sizes[0] / max(1, tensors[0][0][0]) * _numel(tensors[-1][0])
    elif name in _ROWS:
        moved = 2 * sizes[-1]
    elif name in _ADDED_ROWS:
        moved = 3 * sizes[-1]
    elif name == "embedding_dense_backward":
        moved = 3 * sizes[0]
    elif name in _WRITES_ONLY:
        moved = sizes[0]
    elif name in _READS_ONLY:
        moved = sum(sizes)
    elif name in ("cat", "stack"):
        moved = 2 * sum(sizes)
    elif name.startswith("_fused_"):  # gradients, its second list, are only read
        lists = [
            each * sum(map(_numel, shape)) if kind == "TensorList" else 0.0
            for shape, kind in zip(operation.shapes, operation.types, strict=False)
            for each in (_SIZES["TensorList"],)
        ]
        moved = 2 * sum(lists) - (lists[1] if len(lists) > 1 else 0.0)
    else:  # reads its arguments, writes something as large as the largest
        moved = sum(sizes) + max(sizes)
    return Work(0.0, moved, tensors[0][2])


def _product(name: str, tensors: Sequence[tuple[Any, int, str]]) -> Work:
    if name in ("addmm", "baddbmm"):
        tensors = tensors[1:]
    (a, each, dtype), (b, *_) = tensors[:2]
    columns = b[0] if "linear" in name else b[-1]
    out = _numel(a[:-1]) * columns
    return Work(2.0 * out * a[-1], each * float(_numel(a) + _numel(b) + out), dtype)


def _attention(name: str, tensors: Sequence[tuple[Any, int, str]]) -> Work:
    """Of queries, keys and values [B, H, T, K]; a gradient's come first. Half is masked."""
    backward = "backward" in name
    (q, each, dtype), (k, *_) = tensors[1:3] if backward else tensors[:2]
    flops = 2.0 * _numel(q) * k[2] * (_BACKWARD_PRODUCTS if backward else 1.0)
    passed = sum(_numel(shape) for shape, *_ in tensors[: 4 if backward else 3])
    return Work(flops, each * float(passed + _numel(q) * (3 if backward else 1)), dtype)


def _tensors(operation: Operation) -> Iterator[tuple[Any, int, str]]:
    """Shape, bytes of an element and type of every tensor among the arguments."""
    for shape, kind in zip(operation.shapes, operation.types, strict=False):
        if kind == "TensorList":
            # The trace does not say what the tensors of a list hold.
            yield from ((one, _SIZES[kind], "float") for one in shape)
        elif kind in _SIZES:
            yield shape, _SIZES[kind], kind
