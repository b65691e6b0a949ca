"""What no setting can do to a run, done to the trainer that `longhaul train` builds.

Enters: a case. Leaves: longhaul's own step, disturbed, wherever the program builds one. Never
knows: records, findings, decisions.

The lab's faults count the steps of a run that goes forward only. Here it goes back, and replays
steps to find a cause, so each kind says what it is a property of:
    text and poisoned batches: of the data. They come again wherever the same blocks are read.
    a corrupted weight, a gradient spike of H3: of the moment. They come once; no replay has them.
    what grows, is frozen or is noise in gradients: of the run, from its onset on, however often it
        goes back; replays of such steps have it too. It stops where the rate is low
        (`Case.cured_below`).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from benchmarks.divergence_lab.ends.cases import Case
from benchmarks.divergence_lab.faults import TEXT_FAULTS, DisturbedStep, LabClock, in_turn
from benchmarks.divergence_lab.runs import Fault
from torch import Tensor

import longhaul.run.diagnose.replays
import longhaul.run.train.build
from longhaul.config.recipe import Recipe
from longhaul.core.schedules import derive_key
from longhaul.data.batches import Batch
from longhaul.optim.gate import LossScale
from longhaul.train.trainer import Trainer

_OF_DATA = (*TEXT_FAULTS, "loss-nan", "gradient-spike", "gradient-spikes")
_ONCE = ("corrupted-weight",)
_COLD_STEPS = 3
_COLD_S = 0.1


@dataclass
class Made:
    """What the trainer of a run has done so far, known to every step object of the process."""

    steps: int = 0
    """Steps that it made, those made again included; a rollback turns back no such count."""
    live: bool = False
    """It makes one now; a replay otherwise."""
    at: dict[int, int] = field(default_factory=dict)
    """First block that a step read → the how manyth it was."""


class LiveStep(DisturbedStep):
    """A step with the faults of a case.

    Args:
        case: what to do.
        settings: of the run, as it begins.
        made: shared with the steps of replays.
        given: of `TrainingStep`.
        named: of `TrainingStep`.
    """

    def __init__(self, case: Case, settings: Recipe, made: Made, *given: Any, **named: Any) -> None:
        if case.run.half_shift is not None:
            named["loss_scale"] = LossScale(settings.optim.loss_scale, torch.device("cpu"))
        super().__init__(case.run, LabClock(), *given, **named)
        self._cured_below = case.cured_below * settings.optim.lr
        self._shared = made
        self._batch: Batch | None = None
        self._rate = 0.0

    def __call__(
        self, batch: Batch, micro_sequences: int, learning_rate: float, *given: Any, **named: Any
    ) -> Tensor:
        """Make the step, with whatever is wrong with it."""
        made = self._shared
        if made.live:
            made.steps += 1
            made.at[batch.draw] = made.steps
            if "H6" in self._run.harmless and made.steps <= _COLD_STEPS:
                time.sleep(_COLD_S / made.steps)
        self._batch, self._rate = batch, learning_rate
        self._noise.manual_seed(derive_key(self._run.seed, "fault", batch.draw))
        return super().__call__(batch, micro_sequences, learning_rate, *given, **named)

    @property
    def number(self) -> int:
        """Of faults in the data: the step that reads this batch in an undisturbed run. Of others:
        the how manyth step this is, or was when it was made.
        """
        if self._batch is None:
            return 0
        fault, draw = self._run.fault, self._batch.draw
        if fault is not None and fault.kind in _OF_DATA:
            return draw // (self._batch.next_draw - draw) + 1
        return self._shared.steps if self._shared.live else self._shared.at.get(draw, 1)

    def _acts(self, fault: Fault) -> bool:
        begun = in_turn(fault, self.number)
        if fault is self._run.spike or fault.kind in _ONCE:
            return begun and self._shared.live
        return begun and (fault.kind in _OF_DATA or self._rate > self._cured_below)

    def _duration(self) -> float:
        return 0.0


@contextmanager
def disturbed(case: Case, settings: Recipe) -> Iterator[None]:
    """The case's faults in every step that this process builds meanwhile."""
    run = case.run
    half = run.half_shift is not None or run.logits_in_bf16
    if not (run.fault or run.spike or half or "H6" in run.harmless):
        yield  # the program as it is
        return
    made = Made()
    step = partial(LiveStep, case, settings, made)
    seams: list[tuple[Any, str, Any]] = [
        (longhaul.run.train.build, "TrainingStep", step),
        (longhaul.run.diagnose.replays, "TrainingStep", step),
        (Trainer, "_step", _live(made, Trainer._step)),
    ]
    before = [getattr(where, name) for where, name, _ in seams]
    try:
        for where, name, what in seams:
            setattr(where, name, what)
        yield
    finally:
        for (where, name, _), what in zip(seams, before, strict=True):
            setattr(where, name, what)


def _live(made: Made, make: Callable[[Trainer], None]) -> Callable[[Trainer], None]:
    def step(trainer: Trainer) -> None:
        made.live = True
        try:
            make(trainer)
        finally:
            made.live = False

    return step
