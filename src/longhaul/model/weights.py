"""The modules that own weights, and what each weight is for.

Shape suffixes: B batch, T time, D width, R rows of a table that are read.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

Role = Literal["matrix", "embedding", "position", "head", "vector"]
"""What a weight is: a matrix between activations; a table looked up by tokens; the position table;
the output matrix when it is not the token table; or a vector (bias, norm's scale, shares)."""
ROLES: tuple[Role, ...] = get_args(Role)


class Linear(nn.Linear):
    """A linear map, unfilled: `nn.Linear`'s own start would be paid for and thrown away.

    `role`: `matrix`, or `head` for the output matrix. `writes_residual`: initialisation shrinks it
    with depth (GPT-2, section 2.3). `zero`: it starts at zero instead. `parts`: rows of each map,
    where several are fused into one product; Muon takes them apart.
    """

    narrows = False
    """Takes float32 into its half-precision product; see `initialise.to_number_format`."""

    def __init__(
        self,
        into: int,
        out: int,
        bias: bool,
        role: Role = "matrix",
        writes_residual: bool = False,
        zero: bool = False,
        parts: Sequence[int] = (),
    ) -> None:
        super().__init__(into, out, bias=bias)
        self.parts = tuple(parts) or (out,)
        self.role = role
        self.writes_residual = writes_residual
        self.zero = zero

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map [..., into] to [..., out]."""
        if self.narrows:
            x_BTD = x_BTD.to(self.weight.dtype)
        return functional.linear(x_BTD, self.weight, self.bias)

    def read_as(self, x_BTD: Tensor) -> torch.dtype:
        """The format in which its product takes an input."""
        if self.narrows:
            return self.weight.dtype
        kind = x_BTD.device.type
        casts = torch.is_autocast_enabled(kind) and x_BTD.dtype == torch.float32
        return torch.get_autocast_dtype(kind) if casts else x_BTD.dtype

    def reset_parameters(self) -> None:
        """Left to `initialise.py`."""


class Table(nn.Embedding):
    """A look-up table [rows, width], unfilled; it may start at zero."""

    adds_in_place = False
    """The backward pass adds to `weight.grad` the rows that were read, instead of handing over a
    gradient of the whole table's size; see `add_in_place`."""

    def __init__(self, rows: int, width: int, role: Role, zero: bool = False) -> None:
        super().__init__(rows, width)
        self.role = role
        self.zero = zero

    def forward(self, rows_BT: Tensor) -> Tensor:
        """The rows [B, T, D] of these numbers."""
        # A hook is to see the gradient.
        watched = self.weight._backward_hooks or self.weight._post_accumulate_grad_hooks
        if self.adds_in_place and torch.is_grad_enabled() and not watched:
            read_BTD: Tensor = _RowsInPlace.apply(self.weight, rows_BT)  # type: ignore[no-untyped-call]
            return read_BTD
        return super().forward(rows_BT)

    def reset_parameters(self) -> None:
        """Left to `initialise.py`."""


class _RowsInPlace(torch.autograd.Function):
    """Looks rows up; backward adds to the table's gradient and hands over none."""

    @staticmethod
    def forward(ctx: Any, weight: nn.Parameter, rows_BT: Tensor) -> Tensor:
        ctx.weight, ctx.rows_BT = weight, rows_BT
        return functional.embedding(rows_BT, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BTD: Tensor) -> tuple[None, None]:
        weight = ctx.weight
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        # Rows read twice are summed before they are added, as a whole gradient would have them.
        read_R, place_BT = torch.unique(ctx.rows_BT, return_inverse=True)
        sums_RD = gradient_BTD.new_zeros(len(read_R), weight.size(1))
        sums_RD.index_add_(0, place_BT.flatten(), gradient_BTD.flatten(0, -2))
        weight.grad.index_add_(0, read_R, sums_RD)
        return None, None


def add_in_place(model: nn.Module, but: Collection[str] = (), adds: bool = True) -> None:
    """Let the tables of `model` add in place, with the same bits: on a CPU a gradient of a table's
    size for every micro-batch, zeros almost all, takes an eighth of a small model's step. For eager
    passes of whole tables in float32; `torch.autograd.grad` sees no gradient of them then. `but`
    are names of tables that serve something else too, in whose gradient all is added up first. If
    `adds` is false, none does.
    """
    for name, module in model.named_modules():
        if isinstance(module, Table) and name not in but:
            module.adds_in_place = adds and module.weight.dtype == torch.float32


class Scalars(nn.Module):
    """Learned numbers, such as shares of a mixture, with the values that they begin with."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.start = tuple(start)
        self.weight = nn.Parameter(torch.empty(len(self.start)))


def roles(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Role]]:
    """Name, weight and role of every trainable weight of `model`, each weight once."""
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner = owners[name.rpartition(".")[0]]
        role: Role = getattr(owner, "role", "matrix")
        yield name, parameter, "vector" if parameter.ndim < 2 else role
