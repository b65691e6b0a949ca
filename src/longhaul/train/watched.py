"""A trainer among many that can be compared with the others: its pace, its weights, its numbers.

All ranks look at the same steps, without a word. What they tell each other is few numbers, over
the CPU: each rank's own seconds of eight steps at once, to rank 0 alone; and every so many steps
hashes of the weights they hold alike, and what they compute from one micro-batch that all data
ranks are given. The latter is a pass without an update: all ranks would have to wait for two of
them anyway, and so none is left out.

Enters: a trainer's steps. Leaves: seconds and values of all ranks, on rank 0; training state,
random generators and losses as they would be without. Never knows: who is slow, or wrong
(`supervise/`).
"""

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from longhaul.config.recipe import Recipe
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.machine import machine
from longhaul.core.records import Event, StepRecord
from longhaul.core.units import Seconds
from longhaul.data.batches import Batch
from longhaul.logbook.ledger import LedgerState
from longhaul.model.block import Block
from longhaul.parallel.world import World
from longhaul.train.loan import Loan
from longhaul.train.parts import Identity, Parts
from longhaul.train.pulse import Pulse
from longhaul.train.trainer import Trainer

NODE = "LONGHAUL_NODE"
"""Environment variable of a worker: the name of its node."""
TOLERANCE = 1e-3
"""Relative difference that is none where ranks need not compute the same bits: on devices whose
kernels add up in the order of the moment, and between processors of two kinds."""


class SilentCorruption(LonghaulError):
    """A rank computes wrong numbers, or holds wrong weights, and nothing fails."""

    exit_code = ExitCode.FAILED
    title = "SilentCorruption"


@dataclass(frozen=True, slots=True)
class Compared:
    """What ranks that should have the same have."""

    step: int
    what: Literal["weights", "slot"]
    given: tuple[Mapping[str, str | tuple[float, ...]], ...]
    """By rank: name of a group of ranks → a hash, or what was computed."""
    tolerance: float = 0.0


class WatchedTrainer(Trainer):
    """What leader and followers have in common.

    Args:
        recipe, ledger, parts, identity: as `Trainer`; the parts are those of one rank of many.
    """

    def __init__(
        self, recipe: Recipe, ledger: LedgerState, parts: Parts, identity: Identity
    ) -> None:
        assert parts.ranks is not None
        self._ranks = ranks = parts.ranks
        device = ranks.world.device
        layers = [module for module in parts.step.model.modules() if isinstance(module, Block)]
        self._pulse = parts.step.pulse = Pulse(device, layers)
        kind = (machine()["cpu"], torch.__version__, torch.get_num_threads())
        node, alike = os.environ.get(NODE) or platform.node(), _held_alike(parts, ranks.world.rank)
        told = ranks.control.gather((node, kind, alike))
        self.nodes: tuple[str, ...] = tuple(node for node, _, _ in told)
        """Where each rank runs."""
        self.held_alike: float = min((share for _, _, share in told), default=0.0)
        """On rank 0, share of each rank's weights that can be compared, where it is smallest."""
        self._exact = device.type == "cpu" and len({kind for _, kind, _ in told}) == 1
        self._is_new = True
        self._paces: list[tuple[int, tuple[Seconds, ...]]] = []
        self._compared: list[Compared] = []
        super().__init__(recipe, ledger, parts, identity)

    @property
    def world(self) -> World:
        """All ranks."""
        return self._ranks.world

    def paces(self) -> list[tuple[int, tuple[Seconds, ...]]]:
        """On rank 0, what came in since the last call: step, own seconds of each rank."""
        taken, self._paces = self._paces, []
        return taken

    def comparisons(self) -> list[Compared]:
        """What was compared since the last call."""
        taken, self._compared = self._compared, []
        return taken

    def compared(self) -> Iterator[StepRecord | Event]:
        """Compare what is due at this border; the first one of an attempt is due as well."""
        monitor, is_new = self.settings.monitor, self._is_new
        self._is_new = False
        weights, slot = (
            every > 0 and (is_new or self._due(every))
            for every in (monitor.hash_every, monitor.witness_every)
        )
        if weights:
            yield from self.compare("weights")
        if slot:
            yield from self.compare("slot")

    def _pauses(self) -> tuple[int, ...]:
        monitor = self.settings.monitor
        first = (1,) if self._is_new else ()  # the first border of an attempt compares
        return (*super()._pauses(), monitor.hash_every, monitor.witness_every, *first)

    def compare(self, what: Literal["weights", "slot"]) -> Iterator[StepRecord | Event]:
        """Compare with all ranks; nothing where there is nobody to compare with."""
        clock = self._parts.clock
        began = clock.monotonic()
        with self._parts.books.booked("detection"):
            exact = what == "weights" or self._exact
            own = self._weights() if what == "weights" else self._slot()
            given = self._ranks.control.gather(own)
        if not any(given):
            return
        compared = Compared(
            self.position.step, what, tuple(given), tolerance=0.0 if exact else TOLERANCE
        )
        self._compared.append(compared)
        took = round(clock.monotonic() - began, 6)
        yield from self.border([self._event("compared", what=what, took_s=took)])

    def lend(self, copies: int) -> Loan:
        """As `Trainer.lend`, where the copies of all ranks of this node have room."""
        here = self.nodes.count(self.nodes[self._ranks.world.rank])
        return super().lend(copies * here)

    def _step(self) -> None:
        super()._step()
        step = self.position.step
        own = self._pulse.reach(step)
        if own is None:
            return
        if rows := self._ranks.control.rows(own):
            self._paces += zip(self._pulse.told_at(step), zip(*rows, strict=True), strict=True)

    def _weights(self) -> Mapping[str, str]:
        from longhaul.train.witness import weight_hashes

        parallel = self._parts.step.parallel
        assert parallel is not None
        return weight_hashes(parallel, self._ranks.world.rank)

    def _slot(self) -> Mapping[str, tuple[float, ...]]:
        from longhaul.train.witness import computed

        world = self._ranks.world
        if world.data_size == 1:
            return {}
        window = self.settings.model.window_at(self.position.step)
        values = computed(self._parts.step, self._shared_batch(), window, self._exact)
        return {f"place {world.layout.model_place(world.rank)}": values}

    def _shared_batch(self) -> Batch:
        """A micro-batch of the next step, for all; each time of another data rank's share."""
        settings, position = self.settings, self.position
        request = self._request(position.draw, settings.batch_at(position.step))
        turn = position.step // max(1, settings.monitor.witness_every)
        batch = self._parts.batches.share(request, turn % self._ranks.world.data_size)
        rows = slice(settings.micro_sequences(position.step))
        tokens_BT, targets_BT = batch.tokens_BT[rows], batch.targets_BT[rows]
        return replace(
            batch,
            tokens_BT=tokens_BT,
            targets_BT=targets_BT,
            num_targets=targets_BT.numel(),
            source_B=None,
        )


def _held_alike(parts: Parts, rank: int) -> float:
    # It imports FSDP, which takes a second, and rank 0 of one process imports this file too.
    from longhaul.train.witness import held_alike

    assert parts.step.parallel is not None
    return held_alike(parts.step.parallel, rank)
