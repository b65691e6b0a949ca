"""Which weights are updated alike, and which of them decay.

Enters: a model and the optimizer's settings. Leaves: groups by role in a fixed order, and rows
for the table printed at start. Never knows: the update rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from longhaul.config.optim import OptimSection
from longhaul.model.weights import ROLES, Role, roles


@dataclass(frozen=True, slots=True)
class Group:
    """All weights of one role, in the model's order."""

    role: Role
    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One line of the table printed at start."""

    role: Role
    tensors: int
    parameters: int
    learning_rate: float
    weight_decay: float


def make_groups(model: nn.Module) -> tuple[Group, ...]:
    """The model's trainable weights by role; roles that do not occur are left out."""
    trainable = [item for item in roles(model) if item[1].requires_grad]
    return tuple(
        Group(
            role,
            tuple(name for name, _, its_role in trainable if its_role == role),
            tuple(parameter for _, parameter, its_role in trainable if its_role == role),
        )
        for role in ROLES
        if any(its_role == role for _, _, its_role in trainable)
    )


def weight_decay(role: Role, settings: OptimSection) -> float:
    """Decay of one role: matrices and the head always, tables if asked, vectors never.

    A vector is a bias or a norm's scale; decay would pull the scale towards 0, not towards doing
    nothing.
    """
    if role == "vector" or (role in ("embedding", "position") and not settings.decay_embeddings):
        return 0.0
    return settings.weight_decay


def describe(groups: Sequence[Group], settings: OptimSection) -> list[GroupRow]:
    """A row per group, with the peak learning rate."""
    return [
        GroupRow(
            role=group.role,
            tensors=len(group.parameters),
            parameters=sum(parameter.numel() for parameter in group.parameters),
            learning_rate=settings.lr,
            weight_decay=weight_decay(group.role, settings),
        )
        for group in groups
    ]
