"""Runs of several ranks whose steps go wrong on some draws, and who look for the cause together.

    python seeking_ranks.py CASES PREPARED RUNS

The ranks are forked from one process, so that torch and FSDP are imported once.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.convert_frame  # which FSDP imports (before forking)

import longhaul.checkpoint.storage
import longhaul.parallel.parallelize
import longhaul.run.train.follower
import longhaul.run.train.run_attempt  # noqa: F401 (before forking)
from longhaul.config.load import load_recipe
from longhaul.core.errors import LonghaulError
from longhaul.data.prepare import prepare
from longhaul.run.train.launch import Start, start
from longhaul.train.trainer import Trainer

SETS = (
    "data.held_out.fraction=0.0005",
    "model.width=16", "model.layers=2", "model.context=32", "model.dropout=0.0",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=2", "batch.stages=[]",
    "optim.schedule.shape=constant", "optim.schedule.warmup_steps=2",
    "evaluation.tokens=256", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=10", "checkpoint.keep_last=9",
    "checkpoint.snapshot_interval_steps=5", "monitor.gauge_interval_steps=4",
    "recover.probation_steps=3", "recover.margin_steps=2", "recover.skip_steps=6",
    "recover.max_skipped_share=0.9", "recover.raise_after_steps=1000", "train.steps=24",
    'recover.ladder.non_finite=[["rollback", "skip"]]', "data.sources.0.weight=1",
)  # fmt: skip
WRONG_DRAWS = range(52, 68)  # steps 14 to 17, at four blocks a step


def main(cases: Sequence[dict[str, Any]], prepared: Path, runs: Path) -> None:
    torch.set_num_threads(1)
    prepare(load_recipe("drill", SETS).recipe, prepared, lambda _: None)
    for case in cases:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = []
        for rank in range(case["size"]):
            child = os.fork()
            if child == 0:
                os.environ |= {
                    "RANK": str(rank), "WORLD_SIZE": str(case["size"]), "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(case["size"]), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }  # fmt: skip
                spoil(case["wrong"], rank)
                os._exit(train(case, prepared, runs))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps({"name": case["name"], "codes": codes}), flush=True)


def train(case: dict[str, Any], prepared: Path, runs: Path) -> int:
    from fakes import SilentView  # of tests/, which a program does not see before it starts

    view = SilentView()
    try:
        typed = (*SETS, *case["sets"])
        return int(start(Start("drill", typed, runs=runs / case["name"], prepared=prepared), view))
    except LonghaulError as error:
        return int(error.exit_code)
    finally:
        print("\n".join(view.said), file=sys.stderr, flush=True)


def spoil(kind: str, rank: int) -> None:
    """Let steps on some draws go wrong, whenever they are made."""

    def spared(batch: Any) -> bool:
        # The math form of attention, which plain steps use, switches this flag off.
        return kind == "kernel" and not torch.backends.cuda.flash_sdp_enabled()

    sys.path.append(str(Path(__file__).parents[1]))
    from poison import poison

    poison(WRONG_DRAWS, spared)
    if kind == "no room" and rank == 1:

        def refuse(self: Trainer, copies: int) -> Any:
            raise MemoryError("the host has no room")

        Trainer.borrow_step = refuse  # type: ignore[method-assign]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
