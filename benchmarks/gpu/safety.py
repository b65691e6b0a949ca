"""What safety costs: longhaul's trainer with all its watching and saving, against a bare loop.

Both train the same compiled model in one process, in turns, each for as many steps as lie between
two readings of gauges. The bare loop makes the same passes, then clips by torch's own function and
updates by torch's own fused AdamW: no gate, gauges, records, snapshots or checkpoints. The trainer
does all of these and feeds every record to the detectors and a journal line. A third turn begins
with a save; what it takes longer is dealt out over the recipe's interval between saves.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from benchmarks.common import Bar, Ratio, figure, interleaved, paired_ratio
from benchmarks.gpu.setting import Outcome, Setting

if TYPE_CHECKING:
    from longhaul.config.recipe import Recipe
    from longhaul.core.records import Event, StepRecord
    from longhaul.data.batches import BatchReader
    from longhaul.data.dataset import Dataset
    from longhaul.train.parts import Parts

BAR_PERCENT = 1.0
_RECIPE = "gpt2-124m"
_RESERVE_S = 60.0
_SHORTER = ("batch.sequences=240", "checkpoint.snapshot_mb=4400")
"""Half the recipe's batch, for more turns: what is done once in so many steps weighs twice as much.
Two snapshots, whose buffers are there after the first turns, as they are in any longer run."""


def safety(setting: Setting) -> Outcome:
    """Monitors, gate and asynchronous checkpoints, in shares of a bare step."""
    import torch

    recipe = setting.recipe(
        _RECIPE,
        "evaluation.interval_steps=0",
        "train={steps=1000000}",
        *setting.pick(_SHORTER, ("monitor.gauge_interval_steps=3",)),
    )
    turns = Turns(setting, recipe)
    try:
        turns.watched()  # compiles, and takes every buffer
        turns.saving()
        began = time.monotonic()
        turns.bare()
        left = (setting.left_s - _RESERVE_S) / (3 * (time.monotonic() - began))
        rounds = setting.pick(min(5, max(2, int(left))), 2)
        ways = {"bare": turns.bare, "watched": turns.watched, "saving": turns.saving}
        measured = interleaved(rounds, ways)
    finally:
        turns.close()
        if setting.device.type == "cuda":
            torch.cuda.synchronize()
    watched = paired_ratio(measured["watched"], measured["bare"])
    saving = paired_ratio(measured["saving"], measured["watched"])
    interval = recipe.checkpoint.interval_steps
    return Outcome(bars_of(watched, saving, turns.steps, int(interval)), {"seconds": measured})


def bars_of(watched: Ratio, saving: Ratio, steps: int, interval: int) -> list[Bar]:
    """Rows from the time of a turn of so many `steps`, watched over bare, saving over watched."""
    watching = 100 * (watched.mean - 1)
    a_save = 100 * (saving.mean - 1) * steps
    saves = a_save / interval if interval else 0.0
    whole, spread = watching + saves, 100 * (watched.high - watched.mean)
    note = f"{watching:.2f} + {saves:.2f} %; 95 % interval of the first ± {spread:.2f}"
    return [
        Bar("safety: all together", whole, "%", BAR_PERCENT, whole <= BAR_PERCENT, note),
        figure("gate, gauges, detectors, records, snapshots", watching, "%", "of a bare step"),
        figure("a checkpoint", a_save, "%", f"of a step, once in {interval}"),
    ]


class Turns:
    """One model, and two ways to train it."""

    def __init__(self, setting: Setting, recipe: "Recipe") -> None:
        from longhaul.logbook.ledger import LedgerState
        from longhaul.recover.health_monitor import HealthMonitor
        from longhaul.train.trainer import Identity, Trainer

        self._device, self._recipe = setting.device, recipe
        self.steps = recipe.monitor.gauge_interval_steps
        dataset = setting.dataset(recipe)
        self._parts = _parts(setting, recipe, dataset)
        self._trainer = Trainer(recipe, LedgerState(), self._parts, Identity(1, "1.00", 0))
        self._records = self._trainer.steps()
        self._monitor = HealthMonitor(recipe)
        self._bare = self._bare_steps(dataset)

    def watched(self) -> float:
        """Seconds of a turn of the trainer."""
        return self._timed(self._watch)

    def saving(self) -> float:
        """The same, with a save at its beginning; that it ends is waited for outside the clock."""

        def body() -> None:
            for record in self._trainer.save():
                self._take(record)
            self._watch()

        seconds = self._timed(body)
        changes = [event.data["health"] for event in self._trainer.saved(wait=True)]
        assert "failed" not in changes, "the checkpoint was not written"
        return seconds

    def bare(self) -> float:
        """Seconds of a turn of the bare loop."""
        return self._timed(lambda: [next(self._bare) for _ in range(self.steps)])

    def close(self) -> None:
        """End the threads."""
        self._parts.batches.close()
        with suppress(OSError):
            self._parts.saver.close()

    def _timed(self, body: Callable[[], object]) -> float:
        import torch

        began = time.perf_counter()
        body()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def _watch(self) -> None:
        aim = self._trainer.position.step + self.steps
        while self._trainer.position.step < aim:
            self._take(next(self._records))

    def _take(self, record: "StepRecord | Event") -> None:
        """What the loop does with a record, but for acting."""
        from longhaul.core.records import to_line

        to_line(record)
        self._monitor.observe(record)

    def _bare_steps(self, dataset: "Dataset") -> Iterator[None]:
        """Passes by the same compiled model, and torch's own update."""
        import torch

        from longhaul.data.batches import BatchRequest

        step, recipe, stage = self._parts.step, self._recipe, self._recipe.batch_at(0)
        optim, weights = recipe.optim, [p for p in step.model.parameters() if p.requires_grad]
        matrices = [p for p in weights if p.dim() > 1]
        vectors = [p for p in weights if p.dim() <= 1]
        # So low a rate changes nothing that the trainer's detectors would see.
        update = torch.optim.AdamW(
            [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=1e-9, fused=True,
            betas=(optim.beta1, optim.beta2), eps=optim.eps, weight_decay=optim.weight_decay,
        )  # fmt: skip
        batches, draw = _reader(recipe, dataset), 0
        while True:
            here = BatchRequest(draw, stage.sequences, stage.sequence_length)
            draw += stage.sequences * stage.sequence_length // recipe.block_length()
            ahead = BatchRequest(draw, stage.sequences, stage.sequence_length)
            batch = batches.read(here, ahead if self._device.type == "cuda" else None)
            step.model.train()
            step.compute(batch, recipe.micro_sequences(0))
            torch.nn.utils.clip_grad_norm_(weights, optim.clip)
            update.step()
            update.zero_grad(set_to_none=True)
            yield


def _reader(recipe: "Recipe", dataset: "Dataset") -> "BatchReader":
    from longhaul.data.batches import BatchReader

    return BatchReader(dataset, recipe)


def _parts(setting: Setting, recipe: "Recipe", dataset: "Dataset") -> "Parts":
    """As an attempt of one process builds them, without its folder and its lease."""
    from longhaul.checkpoint.saver import Saver
    from longhaul.core.clocks import RealClock, TimeBuckets
    from longhaul.logbook.ledger import LedgerState
    from longhaul.parallel.device import settle_torch
    from longhaul.run.train.build import build_parts

    settle_torch(recipe)
    clock = RealClock()
    checkpoints = setting.room / "checkpoints"
    checkpoints.mkdir()
    saver = Saver(checkpoints, attempt=1, still_owner=lambda: True, clock=clock, settled=True)
    return build_parts(recipe, LedgerState(), dataset, setting.device, saver, TimeBuckets(clock))
