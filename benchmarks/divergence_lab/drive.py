"""Making a run's records, with longhaul's own trainer.

Enters: a declared run. Leaves: its step records and events, exactly as a live run yields them,
with a clock that is told the time. Never knows: why the run goes wrong, or what is found in it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from benchmarks.divergence_lab.faults import DisturbedStep, LabClock
from benchmarks.divergence_lab.other import is_of_other_text, located, sources
from benchmarks.divergence_lab.runs import BASE, Run

from longhaul.checkpoint.capture import TrainingState
from longhaul.checkpoint.saver import CheckpointChange, Saver
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.config.load import load_recipe, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import TimeBuckets
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.core.units import Seconds
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset
from longhaul.data.prepare import prepare
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.model.initialise import build, to_number_format
from longhaul.optim.gate import LossScale
from longhaul.optim.update_rules import build_optimizer
from longhaul.train.state import Progress
from longhaul.train.trainer import Identity, Parts, Trainer

_EVALUATION_S = 0.4
"""A batch of an evaluation takes so long."""
_SAVE_S = 3.0


class SlowSaver(Saver):
    """Stands in for the saver: saves nothing, and takes its time."""

    def __init__(self, clock: LabClock) -> None:
        self._clock = clock

    def save(
        self,
        step: int,
        state: TrainingState,
        alive: Callable[[], object] = lambda: None,
        at_rest: bool = False,
    ) -> Seconds:
        self._clock.advance(_SAVE_S)
        return 0.0

    def wait(self, alive: Callable[[], object] = lambda: None) -> Seconds:
        """Nothing is under way."""
        return 0.0

    def poll(self) -> list[CheckpointChange]:
        return []


@cache
def base_recipe() -> Recipe:
    # The stored traces were made in it, and no attempt is begun here that would choose a format.
    return load_recipe(str(BASE), ("precision.compute=float32",)).recipe


@cache
def text(home: Path, other: bool = False) -> Dataset:
    """The prepared text, the same for all runs, or the other text; its sources' weights are each
    run's own.
    """
    changed = {"data.sources": located(sources())} if other else {}
    return prepare(with_overrides(base_recipe(), changed), home, lambda _: None)


def recipe_of(run: Run) -> Recipe:
    """The recipe of a run, checked as any other is."""
    changed = {**run.settings, "seed": run.seed}
    if "data.sources" in changed:
        changed["data.sources"] = located(changed["data.sources"])
    return with_overrides(base_recipe(), changed)


def ledger_of(run: Run) -> LedgerState:
    """What comes into force at the onset, as a person's `set` would."""
    state = LedgerState()
    for path, value in run.later.items():
        data = {"path": path, "value": value, "old": None}
        decision = Decision(
            kind="set", attempt=1, step=0, from_step=run.onset - 1, time=0.0, who="lab",
            reason="", data=data,
        )  # fmt: skip
        state = fold(state, decision)
    return state


def make_trainer(run: Run, home: Path) -> tuple[Trainer, BatchReader]:
    """A trainer at its start, and the reader to close after it."""
    torch.set_num_threads(1)
    recipe, device, clock = recipe_of(run), torch.device("cpu"), LabClock()
    dataset = _weighted(text(home, is_of_other_text(run)), recipe)
    model = build(recipe.model, dataset.vocab_size, recipe.seed)
    to_number_format(model, recipe.precision)
    model.register_forward_pre_hook(
        lambda module, _: None if module.training else clock.advance(_EVALUATION_S)
    )
    scale = LossScale(recipe.optim.loss_scale, device) if run.half_shift is not None else None
    batches = BatchReader(dataset, recipe)
    optimizer = build_optimizer(model, recipe.optim)
    parts = Parts(
        step=DisturbedStep(
            run,
            clock,
            model,
            optimizer,
            device,
            recipe.precision,
            recipe.seed,
            loss_scale=scale,
            sources=tuple(source.name for source in dataset.sources),
        ),
        progress=Progress(recipe, dataset.identity),
        batches=batches,
        dataset=dataset,
        saver=SlowSaver(clock),
        snapshots=SnapshotRing(0),
        time_buckets=TimeBuckets(clock),
        clock=clock,
    )
    return Trainer(recipe, ledger_of(run), parts, Identity(1, "1.00", 0)), batches


def records(run: Run, home: Path) -> Iterator[StepRecord | Event]:
    """Everything the trainer yields, in order."""
    trainer, batches = make_trainer(run, home)
    try:
        yield from trainer.steps()
    finally:
        batches.close()


def moved_share(run: Run, home: Path, role: str) -> float:
    """Relative change of a role's weights from the onset of the fault to the end of the run: the
    truth about a frozen group, which the loss alone does not tell.
    """
    trainer, batches = make_trainer(run, home)
    weights = [
        p for group in trainer.training_step.optimizer.groups if group.role == role
        for p in group.parameters
    ]  # fmt: skip
    before = [p.detach().clone() for p in weights]
    try:
        for record in trainer.steps():
            if isinstance(record, StepRecord) and record.step == run.onset - 1:
                before = [p.detach().clone() for p in weights]
    finally:
        batches.close()
    change = sum(
        float((p.detach() - b).square().sum()) for p, b in zip(weights, before, strict=True)
    )
    size = sum(float(b.square().sum()) for b in before)
    return (change / size) ** 0.5 if size else float("nan")


def _weighted(dataset: Dataset, recipe: Recipe) -> Dataset:
    weights = {source.name: source.weight for source in recipe.data.sources}
    sources = tuple(replace(source, weight=weights[source.name]) for source in dataset.sources)
    return replace(dataset, sources=sources)
