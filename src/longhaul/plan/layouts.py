"""Layouts of a recipe on so many devices: those that fit, ranked by predicted step time.

Pure: a recipe, a device and counts in; candidates out. Memory is `plan/memory.py`'s estimate with
a margin for fragments, time `plan/step_time.py`'s roofline.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from longhaul.config.combinations import combination_problems
from longhaul.config.recipe import Recipe
from longhaul.core.devices import Device, Format
from longhaul.core.errors import UsageError
from longhaul.core.units import Bytes, Seconds, short_bytes
from longhaul.parallel.layout import Layout
from longhaul.plan.memory import MemoryEstimate, estimate_memory
from longhaul.plan.step_time import Rates, StepModel, StepTime

FRAGMENTS = 0.05
"""Assumed: share of what tensors take that an allocator holds beside it."""
LIBRARIES: Bytes = 10**9
"""Assumed: what the driver, cuBLAS and NCCL take of a GPU before any tensor is there."""
_MICRO = (1, 2, 4, 8, 16, 32, 64)
_RECOMPUTE = ("none", "selective", "full")
_PIPELINES = (1, 2, 4, 8, 16, 32)
_STAGES_PER_RANK = (1, 2, 4)
_KINDS = {
    "weights": "weights", "gradients": "gradients", "optimizer state": "optimizer",
    "activations": "activations", "logits": "activations",
    "activations of an evaluation": "activations", "logits of an evaluation": "activations",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to deal a recipe out."""

    layout: Layout
    stages_per_rank: int
    micro_sequences: int
    recompute: str
    memory: Mapping[str, Bytes]
    """By kind, on the rank that takes most."""
    time: StepTime
    mfu: float | None

    @property
    def memory_bytes(self) -> Bytes:
        """Of all kinds."""
        return sum(self.memory.values())

    @property
    def dealt(self) -> str:
        """As people write it: `pipeline 4 × shard 8, 2 stages a rank`."""
        stages = f", {self.stages_per_rank} stages a rank" if self.stages_per_rank > 1 else ""
        return f"{self.layout}{stages}"

    @property
    def settings(self) -> dict[str, object]:
        """What `--set` would say for it."""
        layout = self.layout
        return {
            "parallel.replicate": layout.replicate, "parallel.shard": layout.shard,
            "parallel.tensor": layout.tensor, "parallel.pipeline": layout.pipeline,
            "parallel.stages_per_rank": self.stages_per_rank,
            "batch.micro_sequences": self.micro_sequences,
            "machine.activation_checkpointing": self.recompute,
        }  # fmt: skip


def memory_by_kind(estimate: MemoryEstimate, on_cpu: bool = False) -> dict[str, Bytes]:
    """Weights, gradients, optimizer, activations (arXiv 2205.05198), buffers, fragmentation."""
    kinds = dict.fromkeys(
        ("weights", "gradients", "optimizer", "activations", "buffers", "fragmentation"), 0
    )
    for name, taken in estimate.classes.items():
        kinds[_KINDS.get(name, "buffers")] += taken
    if not on_cpu:
        kinds["buffers"] += LIBRARIES
        kinds["fragmentation"] = round(FRAGMENTS * estimate.total)
    return kinds


@dataclass(frozen=True, slots=True)
class Search:
    """What is dealt out, and over what."""

    recipe: Recipe
    vocab_size: int
    device: Device
    gpus: int
    element: Format
    efficiency: float
    on_cpu: bool = False
    memory_bytes: Bytes | None = None
    """Of each device, where it is not as sold."""

    @property
    def room(self) -> Bytes:
        """Bytes that all kinds together may take."""
        return self.memory_bytes or self.device.memory_bytes

    def candidates(self) -> Iterator[Candidate]:
        """Every layout that the recipe and the number of devices admit, whether it fits or not."""
        rates = Rates.of(self.device, self.element, self.efficiency)
        sequences = self.recipe.batch_stages()[-1].sequences
        for layout in self._layouts(sequences):
            own = -(-sequences // layout.data_size)
            micros = [m for m in _MICRO if m <= own and sequences % m == 0]
            stages = _STAGES_PER_RANK if layout.pipeline > 1 else (1,)
            for each, micro, recompute in product(stages, micros, _RECOMPUTE):
                settled = _settled(self.recipe, layout, each, micro, recompute)
                if settled is not None:
                    yield self._candidate(settled, layout, micro, rates)

    def _layouts(self, sequences: int) -> Iterator[Layout]:
        node = self.device.node_devices
        tensors = [t for t in (1, 2, 4, 8) if t <= min(node, self.gpus)]
        for tensor in tensors:
            for pipeline in _PIPELINES:
                data, rest = divmod(self.gpus, tensor * pipeline)
                if rest or not data or data > sequences:
                    continue
                within = node // tensor
                shards = {data} | {s for s in (1, within, 4 * within, 16 * within) if 0 < s < data}
                for shard in sorted(s for s in shards if data % s == 0):
                    yield Layout(data // shard, shard, tensor, pipeline)

    def _candidate(self, recipe: Recipe, layout: Layout, micro: int, rates: Rates) -> Candidate:
        estimate = estimate_memory(recipe, self.vocab_size, layout, self.on_cpu)
        each = 4 if self.element in ("fp32", "tf32") else 2
        model = StepModel(recipe, self.vocab_size, layout, rates, micro, element_bytes=each)
        peak = None if self.on_cpu else self.device.peak[self.element]
        return Candidate(
            layout, recipe.parallel.stages_per_rank, micro,
            recipe.machine.activation_checkpointing,
            memory_by_kind(estimate, self.on_cpu), model.step_time(),
            None if peak is None else model.mfu(peak),
        )  # fmt: skip

    def ranked(self) -> list[Candidate]:
        """Those that fit, the fastest first; a `UsageError` says what would if none does."""
        every = list(self.candidates())
        if not every:
            raise UsageError(*self._no_layout())
        fitting = [one for one in every if one.memory_bytes <= self.room]
        if not fitting:
            least = min(every, key=lambda one: one.memory_bytes)
            raise UsageError(*self._does_not_fit(least))
        return sorted(fitting, key=_order)

    def _no_layout(self) -> tuple[str, str]:
        sequences = self.recipe.batch_stages()[-1].sequences
        return (
            f"--gpus: {self.gpus} devices cannot share batch.sequences {sequences} in any layout",
            "give a number with fewer odd factors, such as a power of two times a node; or more "
            "sequences",
        )

    def _does_not_fit(self, least: Candidate) -> tuple[str, str]:
        largest = max(least.memory, key=lambda kind: least.memory[kind])
        said = (
            f"{self.recipe.name} does not fit {self.gpus} × {self.device.key}: the smallest layout "
            f"({least.dealt}, {least.micro_sequences} sequences, recompute {least.recompute}) "
            f"takes {short_bytes(least.memory_bytes)} of {short_bytes(self.room)}, "
            f"most of it {largest}"
        )
        for factor in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
            more = replace(self, gpus=self.gpus * factor)
            if any(one.memory_bytes <= self.room for one in more.candidates()):
                return said, f"--gpus {more.gpus} would hold it, or a device with more memory"
        return said, f"take devices with at least {short_bytes(least.memory_bytes)} each"


def _order(one: Candidate) -> tuple[Seconds, int, Bytes]:
    """Times that print alike are one: then fewer micro-batches, whose starts are not counted."""
    return float(f"{one.time.total:.3g}"), -one.micro_sequences, one.memory_bytes


def _settled(
    recipe: Recipe, layout: Layout, stages_per_rank: int, micro: int, recompute: str
) -> Recipe | None:
    """The recipe in this layout; None if they do not go together."""
    parallel = recipe.parallel.model_copy(
        update={
            "replicate": layout.replicate, "shard": layout.shard, "tensor": layout.tensor,
            "pipeline": layout.pipeline, "stages_per_rank": stages_per_rank,
        }
    )  # fmt: skip
    machine = recipe.machine.model_copy(
        update={
            "activation_checkpointing": recompute,
            # A pipeline's stages are not compiled.
            "compile": False if layout.pipeline > 1 else recipe.machine.compile,
        }
    )
    batch = recipe.batch.model_copy(update={"micro_sequences": micro})
    settled = recipe.model_copy(update={"parallel": parallel, "machine": machine, "batch": batch})
    return None if any(True for _ in combination_problems(settled)) else settled
