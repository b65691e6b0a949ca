"""Training state as one flat value: named tensors and JSON facts, handed back to the parts that own
them; and a rank's own part of a tensor that is cut over ranks.

Cut tensors are DTensors or plain ones, with their rectangles beside them (`core.pieces`). DTensors
are known by `to_local`, because importing their module costs what one process need not pay.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from longhaul.core.errors import LonghaulError
from longhaul.core.pieces import Piece, Pieces
from longhaul.model.device import queues


def local_of(tensor: Tensor) -> Tensor:
    """The part of `tensor` that lies here: itself, or its shard. Writing to it changes both."""
    tensor = tensor.detach()
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else cast(Tensor, to_local())


def pieces_here(tensor: Tensor, pieces: Pieces | None) -> tuple[Piece, ...]:
    """The rectangles of the whole that a local tensor consists of; by itself it is the whole."""
    if pieces is not None:
        return pieces.mine
    origin = (0,) * tensor.dim()
    return (Piece(origin, origin, tuple(tensor.shape)),)


def whole_shape(local: Tensor, pieces: Pieces | None) -> tuple[int, ...]:
    """Shape of the whole tensor."""
    return tuple(local.shape) if pieces is None else pieces.shape


_MOST_NAMES_SHOWN = 8


class StateMismatch(LonghaulError):
    """A sound checkpoint holds another training state than this run's; an older one will too."""


class Stateful(Protocol):
    """A part of a run that owns state and can give and take it."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Its tensors by name. Loading fills these very tensors in place, bit by bit."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """The rest of its state as JSON values, finite numbers only."""
        return {}

    def take_back(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from this state. `tensors` are those that `tensors()` gave, now filled."""
        return


@runtime_checkable
class Sharded(Stateful, Protocol):
    """A part whose tensors are pieces of whole ones."""

    def pieces(self) -> Mapping[str, Pieces]:
        """By name of a tensor that is cut; the others lie here whole."""
        ...


PartsFor = Callable[[Mapping[str, Any]], Mapping[str, Stateful]]
"""The parts to restore a state into, from the facts of that state."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """All that a checkpoint holds and a rollback undoes."""

    tensors: Mapping[str, Tensor]
    """`part.name` → tensor; strided, of any device and a dtype in `tensor_file.DTYPES`."""
    facts: Mapping[str, Any]
    """part → JSON facts."""
    pieces: Mapping[str, Pieces] = field(default_factory=dict)
    """`part.name` → which pieces of the whole lie here, of tensors that are cut."""


def capture(parts: Mapping[str, Stateful]) -> TrainingState:
    """Collect the state of all parts; the tensors are the live ones, not copies."""
    tensors = {
        f"{part}.{name}": tensor
        for part, owner in parts.items()
        for name, tensor in owner.tensors().items()
    }
    pieces = {
        f"{part}.{name}": held
        for part, owner in parts.items()
        if isinstance(owner, Sharded)
        for name, held in owner.pieces().items()
    }
    return TrainingState(tensors, {part: owner.facts() for part, owner in parts.items()}, pieces)


def hand_back(parts: Mapping[str, Stateful], state: TrainingState) -> None:
    """Let every part take its share of `state`; StateMismatch, and none has, if it has others."""
    differing = _name_differences(state.facts, parts)
    if differing:
        raise StateMismatch(f"the checkpoint holds the state of other parts: {differing}")
    for part, owner in parts.items():
        prefix = f"{part}."
        share = {
            name.removeprefix(prefix): tensor
            for name, tensor in state.tensors.items()
            if name.startswith(prefix)
        }
        owner.take_back(share, state.facts[part])


def put_back(
    parts: Mapping[str, Stateful], kept: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Fill the live tensors of `parts` from `kept`, this rank's parts, in place; hand the facts
    back. After a `StateMismatch` nothing was touched.
    """
    live = capture(parts)
    local = {name: local_of(tensor) for name, tensor in live.tensors.items()}
    check_same(descriptions(kept), descriptions(local))
    with torch.no_grad():
        for name, tensor in local.items():
            tensor.copy_(kept[name], non_blocking=queues(tensor.device))
    hand_back(parts, TrainingState(live.tensors, facts))


def check_same(saved: Mapping[str, str], live: Mapping[str, str]) -> None:
    """Compare the `descriptions` of a checkpoint with those of the tensors it shall fill; a
    `StateMismatch` lists names that differ, with the nearest ones, and other dtypes and shapes.
    """
    names = _name_differences(saved, live)
    problems = [names] if names else []
    problems += [
        f"{name} is {saved[name]} in the checkpoint and {live[name]} here"
        for name in sorted(saved.keys() & live.keys())
        if saved[name] != live[name]
    ]
    if problems:
        raise StateMismatch(
            "the checkpoint holds another training state: " + _shortened(problems, "; "),
            "train this recipe as a new run (--new), or restore the recipe the run began with",
        )


def descriptions(
    tensors: Mapping[str, Tensor], pieces: Mapping[str, Pieces] | None = None
) -> dict[str, str]:
    """Name → `describe`d dtype and shape, of the whole where `pieces` tell it."""
    known = pieces or {}
    return {
        name: describe(tensor.dtype, whole_shape(tensor, known.get(name)))
        for name, tensor in tensors.items()
    }


def describe(dtype: torch.dtype, shape: Iterable[int]) -> str:
    """A dtype and a shape as people read them: 'float32 [3, 4]'."""
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _name_differences(saved: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    unexpected = sorted(saved.keys() - live.keys())
    missing = []
    for name in sorted(live.keys() - saved.keys()):
        near = difflib.get_close_matches(name, unexpected, n=1)
        missing.append(f"{name} (nearest: {near[0]})" if near else name)
    said = ["it lacks " + _shortened(missing)] if missing else []
    if unexpected:
        said.append("nothing here takes " + _shortened(unexpected))
    return "; ".join(said)


def _shortened(words: list[str], separator: str = ", ") -> str:
    shown = separator.join(words[:_MOST_NAMES_SHOWN])
    left = len(words) - _MOST_NAMES_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown
