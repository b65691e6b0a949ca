"""Training state: exactly what a checkpoint holds and a rollback undoes, in parts that give their
state and take it back. The ledger, which never rolls back, is no part of it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from longhaul.checkpoint.capture import Stateful
from longhaul.config.recipe import Recipe
from longhaul.core.errors import NeedsPerson
from longhaul.core.pieces import Pieces
from longhaul.model.gpt import GPT
from longhaul.train.step import TrainingStep

if TYPE_CHECKING:
    from longhaul.parallel.parallelize import Parallel


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands."""

    step: int = 0
    """Updates made."""
    draw: int = 0
    """Next position in the order of data."""
    tokens: int = 0
    """Target tokens trained on."""


@dataclass(frozen=True, slots=True)
class Rewarm:
    """A warm-up of the learning rate after the optimizer's state was thrown away."""

    begin: int
    """Updates made before it."""
    steps: int

    def factor(self, step: int) -> float:
        """Factor on the learning rate of the update that turns `step` into `step + 1`."""
        if not self.begin <= step < self.begin + self.steps:
            return 1.0
        return (step - self.begin + 1) / (self.steps + 1)


class Progress(Stateful):
    """Owns the position, and remembers what it was reached with: effective settings, so that a
    restart shows what differs, and the identity of the text, without which a draw means nothing.
    """

    def __init__(self, settings: Recipe, dataset: str, continues: tuple[str, ...] = ()) -> None:
        self.position = Position()
        self.settings = settings
        self.resets_done = 0
        """Number of the last reset in the ledger that this state has been through."""
        self.rewarm = Rewarm(0, 0)
        self.settings_of_checkpoint: Mapping[str, Any] | None = None
        """Of the checkpoint that was restored; None if none was."""
        self._dataset = dataset
        self._known = {dataset, *continues}

    def facts(self) -> Mapping[str, Any]:
        """Position, resets, effective settings, identity of the text."""
        return {
            "position": asdict(self.position),
            "resets_done": self.resets_done,
            "rewarm": asdict(self.rewarm),
            "settings": self.settings.model_dump(mode="json"),
            "dataset": self._dataset,
        }

    def take_back(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's position; a `NeedsPerson` if it was trained on other text."""
        if facts["dataset"] not in self._known:
            raise NeedsPerson(
                f"the checkpoint was trained on prepared text {facts['dataset'][:12]}, but the "
                f"recipe now prepares {self._dataset[:12]}",
                "put the text back as it was, or start another run with --new",
            )
        self.position = Position(**facts["position"])
        # Checkpoints of before there were resets do not speak of them.
        self.resets_done = facts.get("resets_done", 0)
        self.rewarm = Rewarm(**facts.get("rewarm", {"begin": 0, "steps": 0}))
        self.settings_of_checkpoint = facts["settings"]


@dataclass(frozen=True)
class ModelState(Stateful):
    """The model's parameters; with many processes, this rank's parts of them."""

    model: GPT
    parallel: "Parallel | None" = None

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The live tensors; a tied head appears once."""
        # A pass may leave whole ones in their place.
        cut = self.parallel
        live = dict(self.model.named_parameters()) if cut is None else cut.parameters
        return {name: tensor.detach() for name, tensor in live.items()}

    def pieces(self) -> Mapping[str, Pieces]:
        """Which pieces of each weight lie here."""
        return {} if self.parallel is None else self.parallel.sharding.pieces_of(self.tensors())


class Generators(Stateful):
    """Torch's generator on the CPU, as what draws between two micro-batches must continue exactly.
    Each micro-batch re-keys those of all devices, so a run may go on on another device.
    """

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """A copy of the state, uint8."""
        return {"cpu": torch.get_rng_state()}

    def take_back(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Put the state back."""
        torch.set_rng_state(tensors["cpu"])


def training_state(step: TrainingStep, progress: Progress) -> dict[str, Stateful]:
    """Everything a checkpoint holds, by part."""
    state: dict[str, Stateful] = {
        "model": ModelState(step.model, step.parallel),
        "optim": step.optimizer,
        "generators": Generators(),
        "progress": progress,
    }
    if step.loss_scale is not None:
        state["loss_scale"] = step.loss_scale
    return state
