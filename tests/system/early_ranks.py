"""Muon in several ranks, whose matrices set out during the backward pass or after it.

    python early_ranks.py LAYOUTS RESULT

The ranks are forked from one process, so that torch is imported once.
"""

import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.convert_frame

from longhaul.config.load import load_recipe
from longhaul.core.faults import HANDLERS, Point, register
from longhaul.data.batches import Batch
from longhaul.model.initialise import allocate
from longhaul.optim import early
from longhaul.optim.sharding import own_part
from longhaul.optim.update_rules import build_optimizer
from longhaul.parallel.layout import Layout, Place, find_place
from longhaul.parallel.parallelize import parallelize
from longhaul.parallel.world import form_world, meet, part
from longhaul.train.step import TrainingStep
from longhaul.train.witness import hash_of

SETS = (
    "model.width=24", "model.heads=2", "model.layers=3", "model.context=16", "model.dropout=0.0",
    "batch.sequence_length=16", "batch.sequences=12", "batch.micro_sequences=2", "batch.stages=[]",
    "optim.name=muon", "optim.muon.newton_schulz=float32", "optim.muon.momentum_warmup_steps=3",
    "optim.cautious_decay=true", "optim.clip=0.5",
)  # fmt: skip
STEPS, BROKEN = 4, 2
SEQUENCES = 12  # as many micro-batches at every rank
VOCABULARY = 64


def main(layouts: dict[str, dict[str, int]], result: Path) -> None:
    torch.set_num_threads(1)
    for name, layout in layouts.items():
        size = Layout(**layout).size
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
                    work(name, layout, result)
                    code = 0
                finally:
                    if code:
                        traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        for child in children:
            if os.waitpid(child, 0)[1]:
                raise SystemExit(f"a rank of {name} failed")


def work(name: str, layout: dict[str, int], result: Path) -> None:
    place = find_place(os.environ)
    assert place is not None
    control = meet(place)
    seen = {
        how: trained(layout, place, control, how) for how in ("early", "in one message", "late")
    }
    if place.rank == 0:
        with result.open("a") as file:
            file.write(json.dumps({"name": name, **seen}) + "\n")
    part()


def trained(layout: dict[str, int], place: Place, control: Any, how: str) -> dict[str, Any]:
    """Hashes of all ranks' weights and momenta; messages sent before each step is judged."""
    early._MESSAGE = 1 if how == "early" else 1 << 24
    recipe = load_recipe("drill", SETS).recipe
    world = form_world(place, control, Layout(**layout), torch.device("cpu"))
    model = allocate(recipe.model, VOCABULARY, "meta", 0)
    parallel = parallelize(model, world, recipe.parallel, recipe.seed)
    optimizer = build_optimizer(model, recipe.optim, parallel.sharding)
    step = TrainingStep(
        model, optimizer, world.device, recipe.precision, recipe.seed, sources=["text"],
        parallel=parallel,
    )  # fmt: skip
    if how == "late":
        optimizer.before_backward = lambda is_last: None  # type: ignore[method-assign]
    sent, judged = [], []
    made = early._Message

    def message(*given: Any) -> Any:
        sent.append(len(judged))
        return made(*given)

    def judging(*given: Any, **named: Any) -> Any:
        judged.append(0)
        return type(optimizer).judge(optimizer, *given, **named)

    def spoilt(loss: torch.Tensor, **_: Any) -> torch.Tensor:
        return loss * torch.nan if len(judged) == BROKEN and place.rank == 0 else loss

    HANDLERS.clear()
    register(Point.LOSS, spoilt)
    early._Message = message  # type: ignore[assignment, misc]
    optimizer.judge = judging  # type: ignore[method-assign]
    try:
        figures = [step(batch(number, world), 2, 0.02, number == 1) for number in range(STEPS)]
    finally:
        early._Message = made  # type: ignore[misc]
    own = [str(int(hash_of(own_part(p)))) for p in parallel.parameters.values()]
    state = [str(int(hash_of(own_part(t)))) for t in optimizer.tensors().values() if t.ndim]
    return {
        "weights": control.gather([*own, *state]),
        "masked": [bool(one[2]) for one in figures],
        "losses": [float(one[0]) for one in figures],
        "during": [sent.count(number) for number in range(STEPS)],
    }


def batch(number: int, world: Any) -> Batch:
    """This rank's share of a global batch."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, VOCABULARY, (SEQUENCES, 17), generator=generator)
    own = tokens.tensor_split(world.data_size)[world.data_rank]
    draw = number * len(tokens)
    return Batch(
        own[:, :-1],
        own[:, 1:],
        SEQUENCES * 16,
        draw,
        draw + len(tokens),
        torch.zeros(len(own), dtype=torch.int64),
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
