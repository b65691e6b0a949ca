"""Whether layer n + 1 is gathered while layer n computes, and what that is worth.

    python -m benchmarks.prefetch [RECIPE] [--set parallel.prefetch=2] [--trace FILE]

Two ranks train a sharded model (FSDP2), with `parallel.prefetch` on and off. A trace of one step
(torch.profiler) shows for every layer whether its gathering was begun before the layer before it
had ended, and waited for only after that; the same backward. On two GPUs it is the recipe itself,
and the steps are timed, on off off on; on CPUs its small twin over gloo, whose ranks share the
cores: that shows the order, and no gain.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import Bar, at_least, at_most, figure, missing, paired_ratio, write_results
from benchmarks.equality import start

if TYPE_CHECKING:
    from longhaul.config.recipe import Recipe
    from longhaul.train.step import TrainingStep

VOCABULARY = 131
LAYERS = 4
ROUNDS = 6
RANKS = 2
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Span:
    """Something that rank 0 did, in microseconds of the trace."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class Shown:
    """What the trace of one step shows."""

    forward: tuple[bool, ...]
    """By layer from the second on: its gathering overlaps the layer before it."""
    backward: tuple[bool, ...]
    """By layer from the last but one on, backwards."""
    step_s: tuple[float, ...]
    """Timed steps, without the profiler."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="opt-125m")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--trace", default="", help="where the trace is written, for chrome")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--result", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.result:
        work(asked)
        return
    shown = measure(asked.recipe, asked.set, asked.rounds, asked.trace)
    write_results("prefetch", list(bars(shown)), "python -m benchmarks.prefetch")


def measure(
    recipe: str, overrides: Sequence[str] = (), rounds: int = 0, trace: str = ""
) -> dict[str, Shown]:
    """Traces with prefetch on and off; empty if the ranks did not come to an end."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        sets = [word for override in overrides for word in ("--set", override)]
        more = ["--rounds", str(rounds), "--trace", trace, "--result", str(result)]
        start(RANKS, "benchmarks.prefetch", recipe, *sets, *more, deadline_s=DEADLINE_S)
        told = json.loads(result.read_text()) if result.exists() else {}
    return {
        name: Shown(tuple(row["forward"]), tuple(row["backward"]), tuple(row["step_s"]))
        for name, row in told.items()
    }


def bars(shown: dict[str, Shown]) -> list[Bar]:
    """The share of gatherings that overlap, and the steps' ratio."""
    if not shown:
        return [missing("prefetch", "the ranks did not come to an end", 1.0)]
    on, off = shown["on"], shown["off"]
    rows = []
    for way in ("forward", "backward"):
        with_it, without = getattr(on, way), getattr(off, way)
        share = sum(with_it) / len(with_it)
        note = f"{sum(with_it)} of {len(with_it)} layers"
        rows.append(
            at_least(f"{way}, on: gathered while another computes", share, "share", 1, note)
        )
        share = sum(without) / len(without)
        rows.append(at_most(f"{way}, off: the same", share, "share", 0))
    if on.step_s:
        ratio = paired_ratio(on.step_s, off.step_s)
        rows.append(figure("step, on over off", ratio.mean, "ratio", f"{ratio:.2f}; {_where()}"))
    return rows


def _where() -> str:
    import torch

    if torch.cuda.device_count() >= RANKS:
        return torch.cuda.get_device_name()
    return "gloo, ranks share the cores: no measure of the gain; not measured on GPUs"


def work(asked: argparse.Namespace) -> None:
    """One rank; rank 0 writes what it saw."""
    import torch

    from longhaul.config.load import load_recipe
    from longhaul.config.size import shrunken
    from longhaul.parallel.layout import Layout, find_place
    from longhaul.parallel.world import device_of, form_world, meet, part

    torch.set_num_threads(1)
    on_gpus = torch.cuda.device_count() >= RANKS
    place = find_place(os.environ)
    assert place is not None
    device = device_of(place, torch.device("cuda" if on_gpus else "cpu"))
    world = form_world(place, meet(place), Layout(shard=RANKS), device)
    twin: list[str] = []
    if not on_gpus:
        small = (
            f"model.layers={LAYERS}", "batch.sequences=4", "batch.sequence_length=32",
            'precision.compute="float32"',
        )  # fmt: skip
        twin = [*shrunken(load_recipe(asked.recipe).recipe), *small]
    shown: dict[str, Shown] = {}
    made: dict[str, Stepper] = {}
    for name, ahead in (("on", "parallel.prefetch=1"), ("off", "parallel.prefetch=0")):
        own = asked.set if name == "on" else []
        recipe = load_recipe(asked.recipe, [*twin, "model.dropout=0.0", ahead, *own]).recipe
        made[name] = Stepper(recipe, world, asked.trace if name == "on" else "")
    times: dict[str, list[float]] = {name: [] for name in made}
    for number in range(asked.rounds):
        for name in list(made)[:: 1 if number % 2 == 0 else -1]:
            times[name].append(made[name].time())
    for name, stepper in made.items():
        forward, backward = overlaps(stepper.trace(), stepper.layers)
        shown[name] = Shown(forward, backward, tuple(times[name]))
    if place.rank == 0:
        Path(asked.result).write_text(json.dumps({n: asdict(s) for n, s in shown.items()}))
    part()


class Stepper:
    """A training step, warmed up, and the batch that it makes over and over."""

    def __init__(self, recipe: "Recipe", world: object, trace: str) -> None:
        from longhaul.parallel.world import World
        from longhaul.train.equality import make_step, random_batches

        assert isinstance(world, World)
        self._device, self._trace = world.device, trace
        self.layers = recipe.model.layers
        self._lr = recipe.optim.lr
        self._step: TrainingStep = make_step(recipe, VOCABULARY, world.device, world)
        self._batch = next(random_batches(recipe, VOCABULARY, 1, world))
        self._make()

    def _make(self) -> None:
        sequences = len(self._batch.tokens_BT)
        self._step(self._batch, sequences, self._lr, read_gauges=False).tolist()

    def time(self) -> float:
        """Seconds of one step."""
        began = time.perf_counter()
        self._make()
        return time.perf_counter() - began

    def trace(self) -> list[Span]:
        """What one step did."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        with profile(activities=kinds) as profiler:
            self._make()
        if self._trace and torch.distributed.get_rank() == 0:
            profiler.export_chrome_trace(self._trace)
        return [
            Span(event.name, event.time_range.start, event.time_range.end)
            for event in profiler.events() or ()
            if event.name.startswith("FSDP::")
        ]


def overlaps(spans: Sequence[Span], layers: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """By layer, forward and then backward, whether its gathering overlaps the layer before it.

    FSDP names what it does before and after a layer's passes; the layer computes between them. A
    gathering overlaps if it is begun before the layer before it has ended, and what it brought is
    taken only after that.
    """

    def find(what: str, layer: int, number: int = 0) -> Span:
        name = f"FSDP::{what} (blocks.{layer})"
        return sorted((s for s in spans if s.name == name), key=lambda s: s.begin)[number]

    def overlap(layer: int, ended: float, number: int) -> bool:
        issued, taken = (
            find("all_gather", layer, number),
            find("all_gather_copy_out", layer, number),
        )
        return issued.begin < ended <= taken.begin

    forward = tuple(
        overlap(layer, find("post_forward", layer - 1).begin, 0) for layer in range(1, layers)
    )
    backward = tuple(
        overlap(layer, find("post_backward_accumulate", layer + 1).begin, 1)
        for layer in reversed(range(layers - 1))
    )
    return forward, backward


if __name__ == "__main__":
    main()
