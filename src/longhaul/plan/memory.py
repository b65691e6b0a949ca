"""Memory that one rank of a run will take, by class of tensor, before a device is touched.

The worst moment is one of four, of which the largest counts: logits and loss at the turn from
the forward to the backward pass, with everything that layers have kept; the end of the backward
pass, with all gradients; the update, with what its rule borrows; an evaluation, without gradients.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from longhaul.config.recipe import Recipe
from longhaul.config.size import ModelSize, model_size
from longhaul.core.units import Bytes
from longhaul.parallel.layout import Layout
from longhaul.plan.activations import (
    FLOAT32,
    Formats,
    around_layers,
    in_layers,
    of_a_chunk,
    of_chunked_loss,
    of_layer,
    of_logits,
    on_its_way,
)
from longhaul.plan.practice import LONGHAUL, Practice

_PORTION = 1 << 25
"""Elements of half weights that are updated at once (`optim/state.py`)."""
_STACK = 1 << 24
"""Elements of matrices that Muon makes orthogonal at once (`optim/muon.py`)."""
_MUON_BORROWS = 6
"""Tensors of a stack's size: gradient, step, and those of the iteration."""
_MUON_SENDS = 4
"""More where ranks share matrices: what is sent and received, on the way to a rank and back."""
_MOMENTS = {"adamw": 2, "lamb": 2, "sgdw": 1}
_MORE_RANKS = "parallel.tensor: more ranks compute each layer and the vocabulary"
_WAYS = {
    "activations": _MORE_RANKS, "activations of an evaluation": _MORE_RANKS,
    "logits": _MORE_RANKS, "logits of an evaluation": _MORE_RANKS,
    "gathered layers":
        "parallel.tensor cuts each layer before it is gathered; parallel.prefetch = 0 helps",
    "weights in bf16": 'precision.compute = "bf16_weights" needs no second copy of them',
}  # fmt: skip
"""What makes a class of tensors smaller where nothing else does."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on one rank at the worst moment of a step, and at that of an evaluation."""

    step: Mapping[str, Bytes]
    """Class of tensor → bytes."""
    micro_sequences: int
    """Sequences that a step computes at once on a rank."""
    evaluation: Mapping[str, Bytes]
    """Class of tensor → bytes."""
    evaluated_sequences: int
    """Sequences that an evaluation computes at once on a rank."""

    @property
    def classes(self) -> Mapping[str, Bytes]:
        """Of whichever takes more."""
        return max(self.step, self.evaluation, key=lambda classes: sum(classes.values()))

    @property
    def total(self) -> Bytes:
        """Over all classes; what the device's own libraries take comes on top."""
        return sum(self.classes.values())

    @property
    def largest(self) -> str:
        """The class that takes most."""
        return max(self.classes, key=lambda name: self.classes[name])


def checkpoint_bytes(recipe: Recipe, vocab_size: int) -> Bytes:
    """Bytes of one checkpoint, of all ranks together: weights and optimizer state."""
    size = model_size(recipe.model, vocab_size)
    return size.total * Formats.of(recipe).weight + _state(recipe, size)


def estimate_memory(
    recipe: Recipe,
    vocab_size: int,
    layout: Layout,
    on_cpu: bool = False,
    practice: Practice = LONGHAUL,
) -> MemoryEstimate:
    """Memory of the rank that takes most; kernels of the CPU keep other things than a GPU's.
    A `practice` other than longhaul's tells what another trainer takes.
    """
    size, formats = model_size(recipe.model, vocab_size), Formats.of(recipe, practice)
    held = _share_of_weights(size, layout)
    parameters = size.total * held
    micro, length, several = _micro_batch(recipe, layout)
    tokens = micro * length
    kept, working = _activations(recipe, layout, tokens, length, on_cpu, practice)
    padded = recipe.model.padded_vocab(vocab_size)
    rows = padded // layout.tensor
    logits = of_logits(recipe, tokens, rows, on_cpu)
    if practice.logit_tensors is not None:
        logits = _whole_logits(recipe, tokens, rows, layout, practice.logit_tensors)
    elif layout.tensor == 1:
        chunked = of_chunked_loss(recipe, tokens, rows, on_cpu)
        logits = logits if chunked is None else chunked
    kept, logits = _of_worst_stage(recipe, layout, kept, logits, tokens // length)
    casts = 0 if practice.cast_shards else _casts(size, formats, layout)
    gradients = round(parameters * formats.weight / layout.shard)
    borrowed = _borrowed(recipe, size, layout, round(parameters / layout.shard))
    on_host = recipe.optim.offload and not on_cpu
    standing: dict[str, Bytes] = {
        "weights": round(parameters * formats.weight / layout.shard),
        "optimizer state": 0 if on_host else round(_state(recipe, size) * held / layout.shard),
    }
    step = _at_worst(
        standing | {"gathered layers": _gathered(recipe, size, formats, layout, practice)},
        # While the first micro-batch's logits are there, no gradient is.
        {"activations": kept + (working if practice.reserved else 0), "logits": logits,
         "weights in bf16": casts,
         "gradients": gradients if several or practice.reserved else 0},
        {"activations": working, "weights in bf16": casts, "gradients": gradients},
        {"gradients": gradients, "update": borrowed},
    )  # fmt: skip
    evaluated, context = recipe.evaluated_within(tokens), recipe.model.context
    layers = in_layers(recipe, evaluated * context, context, on_cpu, layout.tensor)
    chunk = of_a_chunk(recipe, evaluated * context, rows, padded, on_cpu)
    gathered = _gathered(recipe, size, formats, layout, practice, has_gradients=False)
    evaluation = _at_worst(
        standing | {"gathered layers": gathered, "weights in bf16": casts},
        {"activations of an evaluation": layers},
        {"logits of an evaluation": chunk},
    )
    return MemoryEstimate(step, micro, evaluation, evaluated)


def _at_worst(standing: dict[str, Bytes], *moments: dict[str, Bytes]) -> dict[str, Bytes]:
    """What stands, and what the worst of some moments takes beside it."""
    worst = max(moments, key=lambda moment: sum(moment.values()))
    return {name: taken for name, taken in (standing | worst).items() if taken}


def way_to_cut(estimate: MemoryEstimate, recipe: Recipe) -> str:
    """What makes the largest class smaller, as an instruction."""
    largest, micro = estimate.largest, estimate.micro_sequences
    recomputation = recipe.machine.activation_checkpointing
    if largest.endswith("of an evaluation") and estimate.evaluated_sequences > 1:
        return f"evaluation.sequences below {estimate.evaluated_sequences}"
    if largest in ("activations", "logits") and micro > 1:
        return f"batch.micro_sequences below {micro} (the global batch stays)"
    if largest == "activations" and recomputation != "full":
        return 'machine.activation_checkpointing = "full"'
    if largest == "optimizer state" and not recipe.optim.offload:
        return "parallel.shard: more ranks share it; or optim.offload = true, on the host"
    return _WAYS.get(
        largest, "parallel.shard: more ranks share weights, gradients and optimizer state"
    )


def _share_of_weights(size: ModelSize, layout: Layout) -> float:
    """Of all parameters, before they are sharded: the stage with the tables has most."""
    if layout.pipeline == 1:
        return 1.0 / layout.tensor
    around = size.total - size.blocks
    return (size.blocks / layout.pipeline + around) / size.total / layout.tensor


def _micro_batch(recipe: Recipe, layout: Layout) -> tuple[int, int, bool]:
    """Sequences and their length in the largest micro-batch, and whether a step has several."""
    shapes = []
    for stage in recipe.batch_stages():
        own = math.ceil(stage.sequences / layout.data_size)
        wanted = recipe.batch.micro_sequences
        # `auto` takes what fits; one sequence is the least that must.
        micro = min(own, 1 if wanted == "auto" else wanted or own)
        shapes.append((micro * stage.sequence_length, micro, stage.sequence_length, own > micro))
    _, micro, length, several = max(shapes)
    return micro, length, several


def _activations(
    recipe: Recipe, layout: Layout, tokens: int, length: int, on_cpu: bool, practice: Practice
) -> tuple[Bytes, Bytes]:
    """Bytes kept at the turn, and those that a single layer's backward pass works with."""
    recomputation = recipe.machine.activation_checkpointing
    ranks = layout.tensor
    layer = of_layer(recipe, tokens, length, on_cpu, practice, ranks)
    layers = _layers_under_way(recipe, layout, max(1, tokens // length))
    kept = layers * layer[recomputation] + around_layers(recipe, tokens, practice, ranks)
    # The last layer to go backward: what it kept or computes again, and the gradients on their way.
    return kept, layer["none"] + on_its_way(recipe, tokens, ranks, practice)


def _layers_under_way(recipe: Recipe, layout: Layout, sequences: int) -> int:
    """Passes of single layers that the first rank has begun and not ended, at most: all layers of
    its stages for each micro-batch under way (interleaved: arXiv 2104.04473, section 2.2).
    """
    stages, each = layout.pipeline, recipe.parallel.stages_per_rank
    micro_batches = math.ceil(recipe.batch.sequences / layout.data_size / sequences)
    layers = math.ceil(recipe.model.layers / (stages * each))
    if each == 1:
        return layers * min(stages, micro_batches)
    return layers * min(2 * (stages - 1) + (each - 1) * stages + 1, micro_batches * each)


def _of_worst_stage(
    recipe: Recipe, layout: Layout, kept: Bytes, logits: Bytes, sequences: int
) -> tuple[Bytes, Bytes]:
    """Activations and logits of the first stage of a pipeline, which keeps most micro-batches, or
    of the last, which makes the logits: of whichever takes more.
    """
    if layout.pipeline == 1:
        return kept, logits
    under_way = _layers_under_way(recipe, layout, max(1, sequences))
    own = math.ceil(recipe.model.layers / layout.pipeline)
    of_last = round(kept * min(1.0, own / under_way))
    return (of_last, logits) if of_last + logits > kept else (kept, 0)


def _whole_logits(recipe: Recipe, tokens: int, rows: int, layout: Layout, tensors: int) -> Bytes:
    """Logits and loss in float32, all at once. Tensor ranks write one tensor more for the gradient
    (`torch.distributed.tensor.parallel.loss`), and keep what the head reads whole.
    """
    if layout.tensor == 1:
        return tokens * rows * tensors * FLOAT32
    return tokens * (rows * (tensors + 1) * FLOAT32 + 2 * recipe.model.table_width)


def _casts(size: ModelSize, formats: Formats, layout: Layout) -> Bytes:
    """Copies of the weights in the format of products (autocast), made once a micro-batch and kept
    for the backward pass; of whole layers also where layers are sharded.
    """
    if formats.weight == formats.product:
        return 0
    in_products = (size.projections + size.blocks) / layout.pipeline + size.head
    return round(in_products / layout.tensor) * formats.product


def _gathered(
    recipe: Recipe,
    size: ModelSize,
    formats: Formats,
    layout: Layout,
    practice: Practice,
    has_gradients: bool = True,
) -> Bytes:
    """Whole layers that FSDP holds at once, beside this rank's shards."""
    if layout.shard == 1:
        return 0
    weight = formats.product if practice.cast_shards else formats.weight
    blocks = size.blocks / layout.pipeline
    if recipe.parallel.reshard_after_forward:
        layers = math.ceil(recipe.model.layers / layout.pipeline)
        blocks = min(blocks, blocks / layers * (1 + recipe.parallel.prefetch))
    # What is around the layers is gathered once and stays; gradients of one layer are whole too,
    # in the format in which they are summed.
    summed = FLOAT32 if recipe.parallel.reduce == "float32" else formats.weight
    of_gradients = size.blocks / recipe.model.layers * (weight + summed) * has_gradients
    if practice.whole_gradients and layout.pipeline > 1:
        of_gradients += size.blocks / layout.pipeline * FLOAT32 * has_gradients
    around = (size.total - size.blocks) * weight
    return round((blocks * weight + around + of_gradients) / layout.tensor)


def _state(recipe: Recipe, size: ModelSize) -> Bytes:
    """Of all ranks together; float32 whatever the weights are."""
    name = recipe.optim.name
    lost = Formats.of(recipe).weight * size.total * (recipe.optim.rounding == "compensated")
    if name == "muon":
        return lost + FLOAT32 * (_matrices(size) + 2 * (size.total - _matrices(size)))
    moments = _MOMENTS[name] if name != "sgdw" or recipe.optim.sgdw.momentum else 0
    return lost + FLOAT32 * moments * size.total


def _matrices(size: ModelSize) -> int:
    """Parameters that are matrices between activations; blocks have little else."""
    return size.projections + size.blocks


def _borrowed(recipe: Recipe, size: ModelSize, layout: Layout, own: int) -> Bytes:
    """What the update's own tensors take on a rank with so many parameters of its own."""
    portion = min(own, _PORTION) * 2 * FLOAT32
    lent = portion if recipe.optim.offload else 0  # moments, on their way
    halves = portion if recipe.precision.half_weights else 0
    if recipe.optim.name == "muon":
        tensors = _MUON_BORROWS + (_MUON_SENDS if layout.shard * layout.tensor > 1 else 0)
        return max(halves + lent, tensors * FLOAT32 * min(_matrices(size), _STACK))
    return (portion if recipe.optim.name == "lamb" else halves) + lent
