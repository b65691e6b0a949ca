"""Which weights are updated alike, how fast, and which of them decay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from longhaul.config.optim import OptimSection
from longhaul.core.errors import LonghaulError
from longhaul.core.pieces import Pieces
from longhaul.model.weights import ROLES, Role, roles
from longhaul.optim.sharding import Sharding


@dataclass(frozen=True, slots=True)
class Group:
    """All weights of one role, in the model's order."""

    role: Role
    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    parts: tuple[tuple[int, ...], ...]
    """Rows of each map that is fused in a weight, such as queries, keys and values."""


GroupRow = tuple[Role, int, int, float, float]
"""Of the table printed at start: role, tensors, parameters, peak learning rate, weight decay."""


def make_groups(model: nn.Module, pieces: Mapping[str, Pieces] | None = None) -> tuple[Group, ...]:
    """The trainable weights by role, of a model or of a part of one, whose whole weights are
    `pieces`; roles that do not occur are left out.
    """
    trainable = [item for item in roles(model) if item[1].requires_grad]
    owners = dict(model.named_modules())
    groups = []
    for role in ROLES:
        of_role = [(name, weight) for name, weight, its_role in trainable if its_role == role]
        if of_role:
            names, weights = zip(*of_role, strict=True)
            shapes = [w.shape if pieces is None else pieces[n].shape for n, w in of_role]
            parts = tuple(
                _parts(owners[name.rpartition(".")[0]], name, shape)
                for name, shape in zip(names, shapes, strict=True)
            )
            groups.append(Group(role, names, weights, parts))
    return tuple(groups)


def learning_rate(role: Role, settings: OptimSection, lr: float) -> float:
    """Rate of one role when the schedule says `lr`."""
    factor: float = getattr(settings.lr_factors, role)
    return lr * factor


def weight_decay(role: Role, settings: OptimSection) -> float:
    """Decay of one role: matrices and the head always, tables if asked, norms and biases never."""
    if role == "vector" or (role in ("embedding", "position") and not settings.decay_embeddings):
        return 0.0
    return settings.weight_decay


def describe(
    groups: Sequence[Group], settings: OptimSection, whole: Sharding | None = None
) -> list[GroupRow]:
    """A row per role, of the `whole` model that these are parts of."""
    sizes = {g.role: (len(g.parameters), sum(p.numel() for p in g.parameters)) for g in groups}
    if whole is not None:
        there = [role for role in ROLES if role in whole.roles]
        sizes = {role: (whole.weights[role], whole.roles[role]) for role in there}
    return [
        (role, *size, learning_rate(role, settings, settings.lr), weight_decay(role, settings))
        for role, size in sizes.items()
    ]


def _parts(owner: nn.Module, name: str, shape: Sequence[int]) -> tuple[int, ...]:
    parts: int | Sequence[int] = getattr(owner, "parts", 1)
    rows = shape[0] if shape else 1
    if len(shape) < 2:
        return (rows,)
    each = (rows // parts,) * parts if isinstance(parts, int) else tuple(parts)
    if sum(each) != rows:
        raise LonghaulError(
            f"{name} has {rows} rows, which are not its parts {parts}",
            "give its module `parts` that add up: a count of equal ones, or the rows of each",
        )
    return each
