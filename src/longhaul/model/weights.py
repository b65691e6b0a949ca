"""The modules that own weights, and what each weight is for.

Enters: shapes. Leaves: modules with allocated, unfilled weights, each with a role that
initialisation and the optimizer's groups read. Never knows: how weights are filled
(`initialise.py`) or updated.
"""

from collections.abc import Iterator
from typing import Literal, get_args

from torch import nn

Role = Literal["matrix", "embedding", "position", "head", "vector"]
"""What a weight is: a matrix between activations; the token table; the position table; the
output matrix when it is not the token table; or a vector (a bias, the scale of a norm)."""
ROLES: tuple[Role, ...] = get_args(Role)


class Linear(nn.Linear):
    """A linear map, unfilled: `nn.Linear`'s own start would be paid for and thrown away.

    Args:
        into: width of the input.
        out: width of the output.
        bias: add a learned vector.
        role: `matrix`, or `head` for the output matrix.
        writes_residual: its output is added to the residual stream, so that initialisation
            shrinks it with depth (GPT-2, section 2.3).
    """

    def __init__(
        self,
        into: int,
        out: int,
        bias: bool,
        role: Role = "matrix",
        writes_residual: bool = False,
    ) -> None:
        super().__init__(into, out, bias=bias)
        self.role = role
        self.writes_residual = writes_residual

    def reset_parameters(self) -> None:
        """Left to `initialise.py`."""


class Table(nn.Embedding):
    """A look-up table [rows, width], unfilled."""

    def __init__(self, rows: int, width: int, role: Role) -> None:
        super().__init__(rows, width)
        self.role = role

    def reset_parameters(self) -> None:
        """Left to `initialise.py`."""


def roles(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Role]]:
    """Name, weight and role of every trainable weight of `model`, each weight once."""
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner = owners[name.rpartition(".")[0]]
        role: Role = getattr(owner, "role", "matrix")
        yield name, parameter, "vector" if parameter.ndim < 2 else role
