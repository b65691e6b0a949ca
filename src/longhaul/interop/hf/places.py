"""Where each weight of ours lies among those of a Hugging Face model, and how it is turned there
and back: fused maps are taken apart, GPT-2's matrices are transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longhaul.config.model import ModelSection

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Place:
    """Where one weight of ours lies."""

    theirs: tuple[str, ...]
    """Names there; several hold the maps that are fused in ours, in its order of rows."""
    rows: tuple[int, ...] = ()
    """Rows of each of several."""
    factors: tuple[float, ...] = ()
    """Of each of several, where theirs is ours times this; 1 when empty."""
    transposed: bool = False
    """Theirs is [into, out] (GPT-2's Conv1D), ours [out, into]."""
    rows_before: int = 0
    """Rows there before the first that is used."""
    heads: int = 0
    """Theirs has a query, a key and a value of each of so many heads side by side (GPT-NeoX); ours
    has all queries first, then all keys, then all values. 0: as ours."""
    more: float = 0.0
    """Ours is theirs and so much more (Gemma's norms, which keep their scale less 1)."""

    def to_theirs(self, ours: Tensor) -> Iterator[tuple[str, Tensor]]:
        """(name, contiguous tensor) of each there."""
        from torch.nn import functional

        parts = ours.split(self.rows) if self.rows else (ours,)
        factors = self.factors or (1.0,) * len(parts)
        for name, part, factor in zip(self.theirs, parts, factors, strict=True):
            if factor != 1.0:
                part = part * factor
            if self.more:
                part = part.float() - self.more
            if self.heads:
                part = _regrouped(part, (3, self.heads))
            if self.rows_before:
                part = functional.pad(part, (0, 0, self.rows_before, 0))
            yield name, (part.T if self.transposed else part).contiguous()

    def to_ours(self, read: Callable[[str], Tensor]) -> Tensor:
        """Our tensor, of theirs by name."""
        import torch

        parts = [read(name) for name in self.theirs]
        if self.more:
            parts = [part.float() + self.more for part in parts]
        if self.factors:
            parts = [
                part.float() / factor for part, factor in zip(parts, self.factors, strict=True)
            ]
        if self.heads:
            parts = [_regrouped(part, (self.heads, 3)) for part in parts]
        parts = [part.T if self.transposed else part for part in parts]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole[self.rows_before :]

    def shape(self, shape_of: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
        """The shape of our tensor, from theirs by name."""
        shapes = [shape_of(name) for name in self.theirs]
        if self.transposed:
            shapes = [shape[::-1] for shape in shapes]
        if self.rows and tuple(shape[0] for shape in shapes) != self.rows:
            return ()
        if not shapes[0] or any(shape[1:] != shapes[0][1:] for shape in shapes):
            return shapes[0]
        return (sum(shape[0] for shape in shapes) - self.rows_before, *shapes[0][1:])


def _regrouped(rows: Tensor, groups: tuple[int, int]) -> Tensor:
    """Rows [a · b · K, …] in the order [b · a · K, …]."""
    regrouped: Tensor = rows.unflatten(0, (*groups, -1)).transpose(0, 1).flatten(0, 2)
    return regrouped


@dataclass(frozen=True)
class Constant:
    """A weight that their class always has and ours may go without, such as a bias of zeros."""

    shape: tuple[int, ...]
    value: float


class Layout:
    """Where all weights of a model lie, filled by the methods below.

    `places` are by our names; `constants`, by theirs, are what ours has not and theirs must have.
    """

    def __init__(self, settings: ModelSection) -> None:
        self.settings = settings
        self.places: dict[str, Place] = {}
        self.constants: dict[str, Constant] = {}

    def table(self, ours: str, theirs: str, rows_before: int = 0) -> None:
        """A look-up table, or a map without bias."""
        self.places[f"{ours}.weight"] = Place((f"{theirs}.weight",), rows_before=rows_before)

    def linear(
        self,
        ours: str,
        theirs: tuple[str, ...],
        rows: tuple[int, ...],
        *,
        bias: bool,
        own_bias: bool | None = None,
        factors: tuple[float, ...] = (),
        transposed: bool = False,
        heads: int = 0,
    ) -> None:
        """A map, fused of several of `rows` each; `bias`: whether theirs has one; `own_bias`:
        whether ours has, if it is not that of the model's other maps; `heads`: see `Place`.
        """
        own = rows if len(theirs) > 1 else ()
        names = tuple(f"{name}.weight" for name in theirs)
        self.places[f"{ours}.weight"] = Place(names, own, factors, transposed, heads=heads)
        names = tuple(f"{name}.bias" for name in theirs)
        if bias and (self.settings.bias if own_bias is None else own_bias):
            self.places[f"{ours}.bias"] = Place(names, own, factors, heads=heads)
        elif bias:
            zeros = zip(names, rows if own else (sum(rows),), strict=True)
            self.constants |= {name: Constant((size,), 0.0) for name, size in zeros}

    def norm(self, ours: str, theirs: str, *, bias: bool = False, more: float = 0.0) -> None:
        """A norm over the residual stream; `bias`: whether theirs has one; `more`: see `Place`."""
        has_scale, size = self.settings.norm_scale, (self.settings.width,)
        for kind, value, there in (("weight", 1.0, True), ("bias", 0.0, bias)):
            if there and has_scale and (kind == "weight" or self.settings.bias):
                own = more if kind == "weight" else 0.0
                self.places[f"{ours}.{kind}"] = Place((f"{theirs}.{kind}",), more=own)
            elif there:
                value -= more if kind == "weight" else 0.0
                self.constants[f"{theirs}.{kind}"] = Constant(size, value)

    def head(self, theirs: str) -> None:
        """The output matrix, where it is not the token table."""
        if not self.settings.tied_head:
            self.table("head", theirs)
