"""Bytes that an evaluation holds at its worst moment, counted operation by operation.

Nothing goes backward: of a layer only what its next operation reads is there, and of the logits
one chunk. The list follows `model/` as it runs uncompiled, which evaluations do.

Enters: a recipe, tokens of a pass, whether kernels are a GPU's or the CPU's.
Leaves: bytes. Never knows: layouts; whoever cuts the model divides.

Letters as in `activations.py`.
"""

from longhaul.config.model import LOGITS_AT_ONCE, ModelSection
from longhaul.config.recipe import Recipe
from longhaul.core.units import Bytes
from longhaul.plan.activations import FLOAT32, WIDENED, Formats, computed_in

_ROTATED = 4
"""Tensors of the size of queries and keys while these are rotated: they, their halves swapped,
their products with the cosines, and the sum."""


def in_layers(recipe: Recipe, tokens: int, length: int, on_cpu: bool) -> Bytes:
    """Bytes that layers and what they share take at once, at the worst moment.

    Args:
        recipe: its model and its precision.
        tokens: N, of a pass on one rank.
        length: of a sequence, in tokens.
        on_cpu: the CPU's kernels; a GPU's otherwise.
    """
    model, formats = recipe.model, Formats.of(recipe)
    stream, keys = formats.stream * model.width, model.key_heads * model.head_width
    shared = stream * (1 + 2 * model.input_mix)
    shared += stream * (model.layers // 2) if model.unet_skips else 0
    shared += formats.weight * keys * model.value_embeddings
    if model.value_residual:  # a view holds all of the first layer's queries, keys and values
        shared += computed_in(formats, length, on_cpu) * (model.width + 2 * keys)
    return tokens * (shared + max(_attention(model, formats, length, on_cpu), _mlp(model, formats)))


def of_a_chunk(recipe: Recipe, tokens: int, rows: int, padded_vocab: int, on_cpu: bool) -> Bytes:
    """Bytes that a chunk of the logits takes with its loss, and what the head reads for all.

    Args:
        recipe: its model and its precision.
        tokens: N.
        rows: V of one rank.
        padded_vocab: V of all; it decides on the length of a chunk.
        on_cpu: as in `in_layers`.
    """
    model, formats = recipe.model, Formats.of(recipe)
    reads = (formats.stream + formats.product * formats.narrows) * model.width
    chunk = min(tokens, max(1, LOGITS_AT_ONCE // padded_vocab)) * rows
    logits = chunk * formats.product
    if model.logit_softcap:  # what goes into the cap and what comes out of it
        logits += chunk * 2 * FLOAT32
    elif formats.product == FLOAT32:
        logits += chunk * FLOAT32
    elif on_cpu:
        logits += min(chunk * 2 * FLOAT32, WIDENED // 2)
    else:
        logits += chunk * 2 * FLOAT32
    return tokens * reads + logits


def _attention(model: ModelSection, formats: Formats, length: int, on_cpu: bool) -> Bytes:
    """Bytes a token while a layer attends, beside the stream."""
    width, keys = model.width, model.key_heads * model.head_width
    computed = computed_in(formats, length, on_cpu)
    mixed = formats.product * (width + 2 * keys)
    if computed != formats.product:
        mixed += computed * (width + 2 * keys)
    both = (FLOAT32 if model.qk_norm else computed) * (width + keys)
    attends = computed * width + (both if model.qk_norm or model.positions == "rotary" else 0)
    if model.positions == "rotary":
        own = both if model.qk_norm else 0  # otherwise a view of what was mixed
        attends = max(attends, own + (_ROTATED - 1) * FLOAT32 * (width + keys))
    elif model.split_score_scale:
        attends += both
    return formats.stream * width + mixed + attends


def _mlp(model: ModelSection, formats: Formats) -> Bytes:
    """Bytes a token while a layer's MLP computes, beside the stream that came in."""
    inner, product = model.inner_width, formats.product
    around = (2 * formats.stream + product) * model.width
    # Gated: both halves of the product, the bent one and what it multiplies. Otherwise the product
    # and the bent one, which a square needs besides.
    wide = 4 if model.gated else 3 if model.activation == "relu2" else 2
    normed = formats.stream * inner if model.mlp_inner_norm else 0
    return around + max(wide * product * inner, normed + wide // 2 * product * inner)
