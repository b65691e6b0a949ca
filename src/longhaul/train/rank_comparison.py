"""What ranks are compared in: their pace, their weights, what they compute.

All ranks look at the same steps. Over the CPU go few numbers: each rank's own seconds of eight
steps, to rank 0 alone; and every so many steps hashes of the weights they hold alike, and what they
compute from one micro-batch that all data ranks are given, in a pass without an update. Training
state, generators and losses stay what they would be without.
"""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from longhaul.config.recipe import Recipe
from longhaul.config.train import MonitorSection
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.machine import machine
from longhaul.core.units import Seconds
from longhaul.data.batches import Batch, BatchRequest
from longhaul.model.block import Block
from longhaul.parallel.world import World
from longhaul.train.orders import Compares
from longhaul.train.parts import Parts
from longhaul.train.pulse import Pulse
from longhaul.train.witness import computed, held_alike, weight_hashes

NODE = "LONGHAUL_NODE"
"""Environment variable of a worker: the name of its node."""
TOLERANCE = 1e-3
"""Relative difference that is none where ranks need not compute the same bits: on devices whose
kernels add up in any order, and between processors of two kinds."""


class SilentCorruption(LonghaulError):
    """A rank computes wrong numbers, or holds wrong weights, and nothing fails."""

    exit_code = ExitCode.FAILED
    title = "SilentCorruption"


@dataclass(frozen=True, slots=True)
class Compared:
    """What ranks that should have the same have."""

    step: int
    what: Compares
    given: tuple[Mapping[str, str | tuple[float, ...]], ...]
    """By rank: name of a group of ranks → a hash, or what was computed."""
    tolerance: float = 0.0


class RankComparison:
    """One rank's side of the comparisons, which all ranks make at the same time."""

    def __init__(self, parts: Parts) -> None:
        assert parts.ranks is not None
        self._parts = parts
        self._control = parts.ranks.control
        self.world: World = parts.ranks
        """All ranks."""
        device, rank = self.world.device, self.world.rank
        layers = [module for module in parts.step.model.modules() if isinstance(module, Block)]
        self._pulse = parts.step.pulse = Pulse(device, layers)
        kind = (machine()["cpu"], torch.__version__, torch.get_num_threads())
        assert parts.step.parallel is not None
        node, alike = os.environ.get(NODE) or platform.node(), held_alike(parts.step.parallel, rank)
        given = self._control.gather((node, kind, alike))
        self.nodes: tuple[str, ...] = tuple(node for node, _, _ in given)
        """Where each rank runs."""
        self.held_alike: float = min((share for _, _, share in given), default=0.0)
        """On rank 0, share of each rank's weights that can be compared, where it is smallest."""
        self.ranks_here: int = self.nodes.count(self.nodes[rank])
        """Ranks on this rank's node."""
        self._exact = device.type == "cpu" and len({kind for _, kind, _ in given}) == 1
        self._is_new = True
        self._paces: list[tuple[int, tuple[Seconds, ...]]] = []
        self._compared: list[Compared] = []

    def paces(self) -> list[tuple[int, tuple[Seconds, ...]]]:
        """On rank 0, what came in since the last call: step, own seconds of each rank."""
        taken, self._paces = self._paces, []
        return taken

    def comparisons(self) -> list[Compared]:
        """What was compared since the last call."""
        taken, self._compared = self._compared, []
        return taken

    def intervals(self, monitor: MonitorSection) -> tuple[int, ...]:
        """Steps between comparisons; the first step boundary of an attempt compares."""
        first = (1,) if self._is_new else ()
        return (monitor.hash_every, monitor.witness_every, *first)

    def due(self, monitor: MonitorSection, is_due: Callable[[int], bool]) -> tuple[Compares, ...]:
        """What to compare at this boundary; at the first one of an attempt, all that is watched."""
        is_new, self._is_new = self._is_new, False
        every: dict[Compares, int] = {"weights": monitor.hash_every, "slot": monitor.witness_every}
        return tuple(what for what, n in every.items() if n > 0 and (is_new or is_due(n)))

    def exchange_paces(self, step: int) -> None:
        """Send rank 0 the seconds of the last steps, if this one is such a step."""
        own = self._pulse.reach(step)
        if own is not None and (rows := self._control.rows(own)):
            self._paces += zip(self._pulse.sent_at(step), zip(*rows, strict=True), strict=True)

    def compare(self, what: Compares, settings: Recipe, step: int, request: BatchRequest) -> bool:
        """Compare with all ranks, before the step that `request` is of; False if there are none."""
        parallel, world = self._parts.step.parallel, self.world
        assert parallel is not None
        own: Mapping[str, str | tuple[float, ...]] = {}
        if what == "weights":
            own = weight_hashes(parallel, world.rank)
        elif world.data_size > 1:
            batch = self._shared_batch(settings, step, request)
            values = computed(self._parts.step, batch, settings.model.window_at(step), self._exact)
            own = {f"place {world.layout.model_place(world.rank)}": values}
        given = self._control.gather(own)
        if not any(given):
            return False
        tolerance = 0.0 if what == "weights" or self._exact else TOLERANCE
        self._compared.append(Compared(step, what, tuple(given), tolerance))
        return True

    def _shared_batch(self, settings: Recipe, step: int, request: BatchRequest) -> Batch:
        """A micro-batch of the next step, for all; each time of another data rank's share."""
        turn = step // max(1, settings.monitor.witness_every)
        batch = self._parts.batches.share(request, turn % self.world.data_size)
        rows = slice(settings.micro_sequences(step))
        tokens_BT, targets_BT = batch.tokens_BT[rows], batch.targets_BT[rows]
        return replace(
            batch,
            tokens_BT=tokens_BT,
            targets_BT=targets_BT,
            num_targets=targets_BT.numel(),
            source_B=None,
        )
