"""The equality table: every layout that fits 4 processes against the single process.

    python -m benchmarks.equality

Small twins of the OPT, Llama (grouped queries) and speedrun recipes with an odd vocabulary, and 6
sequences a step, which 4 ranks do not divide, train 20 steps on random tokens, dropout off. Real
processes, gloo. Compared are all losses, the whole gradient of the first step, and the gauges of
the last one; bars are on losses and gradients, in float32 with AdamW and with Muon in float32, in
bf16, and in bf16 weights with Muon as in production.
"""

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import HERE, Bar, at_most, missing, write_results

if TYPE_CHECKING:
    from longhaul.config.recipe import Recipe
    from longhaul.optim.gate import Gate
    from longhaul.train.equality import Distance
    from longhaul.train.step import TrainingStep

VOCABULARY = 131
STEPS = 20
DEADLINE_S = 300.0
CASE_S = 10.0

PLAIN = "plain speedrun"
MODELS = {
    "opt": ("opt-125m",),
    "llama": ("llama-1b", "model.kv_heads=2"),
    # Zeros would hide whatever comes before them from the first gradient.
    "speedrun": (
        "speedrun-124m", "model.value_embeddings=1", "model.zero_projections=false",
        "model.zero_head=false",
    ),
    # What a pipeline can have of it.
    PLAIN: (
        "speedrun-124m", "model.unet_skips=false", "model.value_residual=false",
        "model.value_embeddings=0", "model.input_mix=false", "model.zero_projections=false",
        "model.zero_head=false",
    ),
}  # fmt: skip
LAYOUTS = {
    "dp2": {"replicate": 2},
    "fsdp2": {"shard": 2},
    "tp2": {"tensor": 2},
    "fsdp4": {"shard": 4},
    "hsdp2x2": {"replicate": 2, "shard": 2},
    "fsdp2xtp2": {"shard": 2, "tensor": 2},
    "pp2": {"pipeline": 2},
    "pp2xtp2": {"pipeline": 2, "tensor": 2},
    "fsdp2xpp2": {"shard": 2, "pipeline": 2},
    "interleaved pp2": {"pipeline": 2},
    "interleaved pp2xtp2": {"pipeline": 2, "tensor": 2},
    "fsdp2xinterleaved pp2": {"shard": 2, "pipeline": 2},
    "hsdp2x2 offloaded": {"replicate": 2, "shard": 2},
}
_INTERLEAVED = (
    "parallel.pipeline=2", "parallel.stages_per_rank=2", "model.layers=4",
    "batch.micro_sequences=1",
)  # fmt: skip
SETTINGS: dict[str, tuple[str, ...]] = {
    "interleaved pp2": _INTERLEAVED,
    "interleaved pp2xtp2": _INTERLEAVED,
    "fsdp2xinterleaved pp2": _INTERLEAVED,
    "hsdp2x2 offloaded": ("optim.offload=true",),
}
"""What else makes a layout."""
NUMBERS = {
    # Overrides; bar of the losses; bar of the first gradient.
    "adamw float32": (('optim.name="adamw"',), 1e-5, 1e-5),
    "muon float32": (('optim.name="muon"', 'optim.muon.newton_schulz="float32"'), 1e-5, 1e-5),
    "adamw bf16": (('optim.name="adamw"', 'precision.compute="bf16"'), 1e-3, 5e-2),
    "muon bf16": (
        ('optim.name="muon"', 'optim.muon.newton_schulz="bf16"', 'precision.compute="bf16"'),
        1e-3, 5e-2,
    ),
    "adamw bf16 weights": (('optim.name="adamw"', 'precision.compute="bf16_weights"'), 1e-3, 5e-2),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One cell of the table."""

    model: str
    layout: str
    numbers: str
    overrides: tuple[str, ...] = ()
    broken: str = ""
    """What is done wrong on purpose."""
    steps: int = STEPS

    @property
    def processes(self) -> int:
        return math.prod(LAYOUTS[self.layout].values())

    @property
    def settings(self) -> tuple[str, ...]:
        """Overrides of the model's small twin."""
        return (*SETTINGS.get(self.layout, ()), *NUMBERS[self.numbers][0], *self.overrides)

    @property
    def refused(self) -> str:
        """Why there is no such case."""
        if self.model == "speedrun" and "pipeline" in LAYOUTS[self.layout]:
            return "refused by name: model.unet_skips and its kin cannot cross pipeline stages"
        return ""

    @property
    def name(self) -> str:
        return f"{self.model}, {self.layout}, {self.numbers}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worker", nargs=2, metavar=("CASES", "RESULT"), help=argparse.SUPPRESS)
    parser.add_argument("--layout", default="", help="only layouts with this in their names")
    asked = parser.parse_args()
    if asked.worker:
        work(Path(asked.worker[0]), Path(asked.worker[1]))
        return
    cases = [
        Case(model, layout, numbers)
        for numbers in NUMBERS
        for model in MODELS
        for layout in LAYOUTS
        if asked.layout in layout and (model != PLAIN or "pipeline" in LAYOUTS[layout])
    ]
    possible = [case for case in cases if not case.refused]
    refused = [missing(case.name, case.refused) for case in cases if case.refused]
    name = "equality" if not asked.layout else "equality-part"
    write_results(name, [*bars(possible), *refused], "python -m benchmarks.equality")


def bars(cases: Sequence[Case]) -> Iterator[Bar]:
    """Measure the cases and hold each against its two bars."""
    measured = compare(cases)
    for case in cases:
        _, loss_bar, gradient_bar = NUMBERS[case.numbers]
        apart = measured.get(case)
        if apart is None:
            yield missing(case.name, "the processes did not come to an end", loss_bar)
            continue
        note = f"gauges {apart.gauge:.1e} ({apart.gauge_name})"
        yield at_most(f"{case.name}: loss", apart.loss, "relative", loss_bar, note)
        yield at_most(
            f"{case.name}: gradient", apart.gradient, "relative", gradient_bar, apart.weight
        )


def compare(cases: Sequence[Case]) -> "dict[Case, Distance]":
    """Train every case; those of one number of processes in one start of these."""
    from longhaul.train.equality import Distance

    measured: dict[Case, Distance] = {}
    for processes in sorted({case.processes for case in cases}):
        these = [case for case in cases if case.processes == processes]
        with tempfile.TemporaryDirectory() as folder:
            asked, result = Path(folder, "cases.json"), Path(folder, "result.json")
            asked.write_text(json.dumps([asdict(case) for case in these]))
            deadline_s = DEADLINE_S + CASE_S * len(these)
            words = ("--worker", str(asked), str(result))
            start(processes, "benchmarks.equality", *words, deadline_s=deadline_s)
            told = json.loads(result.read_text()) if result.exists() else []
        measured |= {case: Distance(**row) for case, row in zip(these, told, strict=False)}
    return measured


def start(processes: int, module: str, *words: str, deadline_s: float) -> None:
    """Run a module in every rank to its end, and end them all if one fails or none ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", module, *words]
    started = []
    for rank in range(processes):
        place = {
            "RANK": rank, "WORLD_SIZE": processes, "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "OMP_NUM_THREADS": 1,
        }  # fmt: skip
        environment = os.environ | {name: str(value) for name, value in place.items()}
        started.append(subprocess.Popen(command, env=environment, cwd=HERE.parent))
    try:
        for process in started:
            process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        print(f"no end after {deadline_s:.0f} s", file=sys.stderr)
    finally:
        for process in started:
            process.kill()
            process.wait()


def work(asked: Path, result: Path) -> None:
    """One rank: train all cases; rank 0 trains them alone too, and writes how far apart."""
    import torch

    from longhaul.parallel.layout import Layout, find_place
    from longhaul.parallel.world import form_world, meet, part
    from longhaul.train.equality import Trace, distance, trace

    torch.set_num_threads(1)
    cases = [
        Case(**row | {"overrides": tuple(row["overrides"])})
        for row in json.loads(asked.read_text())
    ]
    place = find_place(os.environ)
    assert place is not None
    control = meet(place)
    worlds = {
        layout: form_world(place, control, Layout(**LAYOUTS[layout]), torch.device("cpu"))
        for layout in dict.fromkeys(case.layout for case in cases)
    }
    alone: dict[object, Trace] = {}
    rows = []
    for case in cases:
        recipe = small_recipe(case)
        spoil = BREAKS[case.broken] if case.broken else None
        both = spoil if spoil is _nan_at_one_rank else None
        key = case.model, case.settings, both
        if place.rank == 0 and key not in alone:
            alone[key] = trace(recipe, VOCABULARY, case.steps, spoil=both)
        together = trace(recipe, VOCABULARY, case.steps, worlds[case.layout], spoil)
        if place.rank == 0:
            rows.append(asdict(distance(alone[key], together)))
            result.write_text(json.dumps(rows))
            print(
                f"  {case.name}: loss {rows[-1]['loss']:.1e}, gradient {rows[-1]['gradient']:.1e}",
                flush=True,
            )
    part()


def small_recipe(case: Case) -> "Recipe":
    """The recipe's small twin, for the proof."""
    from longhaul.config.load import load_recipe
    from longhaul.config.size import shrunken

    name, *own = MODELS[case.model]
    twin = shrunken(load_recipe(name).recipe)
    settings = (
        "model.layers=2", "model.dropout=0.0", "batch.sequences=6", "batch.sequence_length=32",
        'precision.compute="float32"', "optim.lr=1e-3",
    )  # fmt: skip
    return load_recipe(name, [*twin, *settings, *own, *case.settings]).recipe


def _mean_of_ranks(step: "TrainingStep") -> None:
    from torch.distributed.fsdp import FSDPModule

    for module in step.model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(2.0)


def _nan_at_one_rank(step: "TrainingStep") -> None:
    import torch

    from longhaul.optim.sharding import own_part

    optimizer, judged = step.optimizer, step.optimizer.judge
    is_last_rank = step.parallel is None or step.parallel.world.rank == step.parallel.world.size - 1
    weight = optimizer.groups[0].parameters[0]

    def judge(loss: torch.Tensor, scale: torch.Tensor | None = None) -> "Gate":
        del optimizer.judge
        if is_last_rank and weight.grad is not None:
            own_part(weight.grad).view(-1)[0] = torch.nan
        return judged(loss, scale)

    optimizer.judge = judge  # type: ignore[method-assign]


def _left_unsummed(step: "TrainingStep") -> None:
    assert step.parallel is not None
    step.parallel._unsummed = ()


BREAKS: "dict[str, Callable[[TrainingStep], None]]" = {
    "mean of ranks": _mean_of_ranks,
    "norms of stretches": _left_unsummed,
    "two token tables": _left_unsummed,
    "a NaN at one rank": _nan_at_one_rank,
}
"""Mistakes that the table must show: gradients averaged instead of summed over ranks; norms'
gradients left as each tensor rank's stretch has them; a tied head's, as each end of the pipeline
has them. A NaN is put into one process's first gradient too: all ranks must hold that update back
as it does."""


if __name__ == "__main__":
    main()
