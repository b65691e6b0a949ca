"""Trainers of several ranks, of which one may do something wrong; what the first one has seen.

    python watched_ranks.py CASES RESULT PREPARED

The ranks are forked from one process, so that torch is imported once. All cases of one number of
ranks are run by the same processes.
"""

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.convert_frame  # which FSDP imports (before forking)

from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.config.load import load_recipe
from longhaul.core.clocks import RealClock, TimeBuckets
from longhaul.core.faults import HANDLERS, Point, register
from longhaul.core.signals import StopRequest
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset
from longhaul.data.prepare import prepare
from longhaul.logbook.ledger import LedgerState
from longhaul.model.initialise import allocate
from longhaul.optim.sharding import own_part
from longhaul.optim.update_rules import build_optimizer
from longhaul.parallel.layout import Layout, Place, find_place
from longhaul.parallel.parallelize import parallelize
from longhaul.parallel.world import form_world, meet, part
from longhaul.run.train.follower import carry_out, train_until_ended
from longhaul.run.train.rank_health import verdict_of
from longhaul.supervise.ranks.stragglers import StragglerWatch
from longhaul.train.coordinator import Follower, RankZero
from longhaul.train.orders import End
from longhaul.train.parts import Identity, Parts
from longhaul.train.rank_comparison import RankComparison
from longhaul.train.state import Progress
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer
from longhaul.train.witness import hash_of

SETS = (
    "data.held_out.fraction=0.0005",
    "model.width=32", "model.layers=2", "model.context=32", "model.dropout=0.1",
    "batch.sequence_length=32", "batch.sequences=12", "batch.micro_sequences=3", "batch.stages=[]",
    "optim.schedule.warmup_steps=2", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=0", "checkpoint.snapshot_interval_steps=0",
    "monitor.gauge_interval_steps=5", "data.sources.0.weight=1",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One short training."""

    name: str
    layout: dict[str, int]
    sets: tuple[str, ...]
    wrong: str = ""
    """Rank, kind, strength, first step."""

    @property
    def size(self) -> int:
        return Layout(**self.layout).size


def main(cases: list[Case], result: Path, prepared: Path) -> None:
    torch.set_num_threads(1)
    dataset = prepare(load_recipe("drill", SETS).recipe, prepared, lambda _: None)
    for size in sorted({case.size for case in cases}):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                os.environ |= {
                    "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port), "LONGHAUL_NODE": f"node{rank}",
                }  # fmt: skip
                code = 1
                try:
                    work([case for case in cases if case.size == size], dataset, result)
                    code = 0
                finally:
                    if code:
                        traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        for child in children:
            if os.waitpid(child, 0)[1]:
                raise SystemExit(f"a rank of {size} failed")


def work(cases: list[Case], dataset: Dataset, result: Path) -> None:
    place = find_place(os.environ)
    assert place is not None
    control = meet(place)
    for case in cases:
        seen = run(case, place, control, dataset)
        if place.rank == 0:
            with result.open("a") as file:
                file.write(json.dumps({"name": case.name, **seen}) + "\n")
    part()


def run(case: Case, place: Place, control: Any, dataset: Dataset) -> dict[str, Any]:
    recipe = load_recipe("drill", [*SETS, *case.sets]).recipe
    world = form_world(place, control, Layout(**case.layout), torch.device("cpu"))
    model = allocate(recipe.model, dataset.vocab_size, "meta", dataset.tokenizer.end_of_text)
    parallel = parallelize(model, world, recipe.parallel, recipe.seed)
    optimizer = build_optimizer(model, recipe.optim, parallel.sharding)
    step = TrainingStep(
        model, optimizer, world.device, recipe.precision, recipe.seed,
        sources=[source.name for source in dataset.sources], parallel=parallel,
    )  # fmt: skip
    clock = RealClock()
    parts = Parts(
        step=step,
        progress=Progress(recipe, dataset.identity),
        batches=BatchReader(dataset, recipe, rank=world.data_rank, size=world.data_size),
        dataset=dataset,
        saver=Saver(Path("nowhere"), attempt=1, still_owner=lambda: True, clock=clock),
        snapshots=SnapshotRing(0),
        time_buckets=TimeBuckets(clock),
        clock=clock,
        ranks=world,
    )  # fmt: skip
    wishes = StopRequest(print)
    coordinator = (
        RankZero(parts, wishes)
        if place.rank == 0
        else Follower(parts, wishes, lambda order: carry_out(order, trainer, Path("nowhere")))
    )
    trainer = Trainer(recipe, LedgerState(), parts, Identity(1, "1.00", 0), coordinator)
    spoil(case, place.rank, trainer)
    if place.rank == 0:
        seen = lead(trainer, coordinator.comparison)
        coordinator.order(End(0))
    else:
        train_until_ended(trainer)
        seen = {}
    own = [str(int(hash_of(own_part(p)))) for p in parallel.parameters.values()]
    parts.batches.close()
    return seen | {"weights": control.gather(own)}


def lead(trainer: Trainer, comparison: RankComparison) -> dict[str, Any]:
    losses, verdicts, named, paces = [], [], [], []
    world = comparison.world
    watch = StragglerWatch([world.layout.stage(rank) for rank in range(world.size)])
    for record in trainer.steps():
        losses += [record.loss] if hasattr(record, "loss") else []
        for compared in comparison.comparisons():
            verdict = verdict_of(compared, None)
            verdicts.append([compared.step, compared.what, verdict.kind, verdict.ranks])
        for made, seconds in comparison.paces():
            paces.append(seconds)
            named += [[made, s.rank, s.slower] for s in watch.observe(made, seconds)]
    return {"losses": losses, "verdicts": verdicts, "named": named, "paces": paces,
            "nodes": comparison.nodes, "alike": comparison.held_alike}  # fmt: skip


def spoil(case: Case, rank: int, trainer: Trainer) -> None:
    """Do something wrong on one rank, from a step on."""
    HANDLERS.clear()  # of the case before
    if not case.wrong:
        return
    who, kind, strength, first = case.wrong.split()
    step, by, begins = trainer.training_step, float(strength), int(first)

    def acting() -> bool:
        return rank == int(who) and trainer.position.step + 1 >= begins

    if kind == "slow":
        count_passes(step, acting, by)
    if rank != int(who):
        return

    def scaled(loss: torch.Tensor, **_: Any) -> torch.Tensor:
        """The same loss, of which the gradients are so many times as large."""
        return loss + (by - 1) * (loss - loss.detach()) if acting() else loss

    if kind == "gradient":
        register(Point.LOSS, scaled)
    elif kind in ("weight", "norm"):
        assert step.parallel is not None
        names = [name for name in step.parallel.parameters if kind in name]
        weight = own_part(step.parallel.parameters[names[0]])
        register(Point.BEFORE_STEP, partial(_turned, begins, weight, int(by)))
    elif kind == "late":
        register(Point.LOSS, partial(_late, by))


def _late(seconds: float, loss: torch.Tensor, **_: Any) -> torch.Tensor:
    """The same loss, for which the others wait."""
    time.sleep(seconds)
    return loss


def count_passes(step: TrainingStep, is_slow: Callable[[], bool], by: float) -> None:
    """Let each pass, forward or backward, take one second of the rank's clock, or `by` seconds."""
    seconds = 0.0

    def counted(compute: Any, *given: Any, **named: Any) -> Any:
        nonlocal seconds
        seconds += by if is_slow() else 1.0
        return compute(*given, **named)

    step._loss = partial(counted, step._loss)  # type: ignore[method-assign]
    step._backward = partial(counted, step._backward)  # type: ignore[method-assign]
    assert step.pulse is not None
    step.pulse.clock = lambda: seconds


def _turned(begins: int, weight: torch.Tensor, bit: int, _: Trainer, step: int) -> None:
    if step == begins:
        with torch.no_grad():
            weight.view(torch.int32).view(-1)[5] ^= 1 << bit


if __name__ == "__main__":
    asked = [
        Case(row["name"], row["layout"], tuple(row["sets"]), row["wrong"])
        for row in json.loads(Path(sys.argv[1]).read_text())
    ]
    main(asked, Path(sys.argv[2]), Path(sys.argv[3]))
