"""Bytes that a forward pass leaves for its backward pass, and that an evaluation holds at its peak.

The lists follow `model/block.py`, `model/attention.py`, `model/layers.py` and `model/head.py` as
they run uncompiled, which evaluations always do; compiled steps keep less. `tokens` are those of a
pass on one rank, `length` those of a sequence; `on_cpu` means the CPU's kernels, a GPU's otherwise.
"""

from dataclasses import dataclass

from longhaul.config.model import LOGITS_AT_ONCE, ModelSection, rows_at_once
from longhaul.config.recipe import Recipe
from longhaul.core.units import Bytes
from longhaul.plan.practice import LONGHAUL, Practice

FLOAT32: Bytes = 4
_SHORT_ON_CPU = 256
"""Tokens up to which attention on a CPU computes in float32, or is written out in bfloat16 where it
is only causal (`model/attention.py`)."""
WIDENED: Bytes = 4 << 19
"""Of logits in half precision, what a CPU's thread widens at once, with its gradients."""
_UNFUSED = 3
"""Tensors of the logits' size in float32 when the loss goes backward: the logarithms of the
shares, the gradient towards them, and the gradient of the logits."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Bytes of an element."""

    weight: Bytes
    product: Bytes
    """What matrix products take and give."""
    stream: Bytes
    """Of the residual stream and the norms."""
    bf16: bool
    """The products' format is bfloat16."""

    @classmethod
    def of(cls, recipe: Recipe, practice: Practice = LONGHAUL) -> "Formats":
        """The formats of a recipe."""
        half = recipe.precision.half_weights is not None
        product = FLOAT32 if recipe.precision.compute in ("auto", "float32") else 2
        stream = 2 if half and not recipe.precision.islands else FLOAT32
        bf16 = product != FLOAT32 and recipe.precision.half_weights != "fp16"
        return cls(
            2 if half else FLOAT32, product, product if practice.cast_shards else stream, bf16
        )


def of_layer(
    recipe: Recipe,
    tokens: int,
    length: int,
    on_cpu: bool,
    practice: Practice = LONGHAUL,
    ranks: int = 1,
) -> dict[str, Bytes]:
    """Bytes that one layer keeps on each of the `ranks` that compute it, by what is computed again:
    `none` of it; all but products, attention and the input (`selective`); all but the input
    (`full`).
    """
    model, formats = recipe.model, Formats.of(recipe, practice)
    attention, attention_products = _attention(model, formats, length, on_cpu)
    mlp, mlp_products = _mlp(model, formats)
    stream = formats.stream * model.width
    # Each norm keeps its input, or its unit vectors, and gives what the next product takes: whole
    # where ranks have a stretch of the sequence each.
    whole = 2 * formats.product * model.width if ranks > 1 else 0
    norms = 2 * (stream + (0 if whole else _into_product(model, formats)))
    norms += (model.attention_out_norm + model.mlp_out_norm + model.input_mix) * stream
    dropout = 2 * model.width if model.dropout else 0  # a byte tells whether one stays
    kept = norms + attention + mlp + dropout
    products = stream + attention_products + mlp_products
    if practice.alternate_products:
        # Of queries, keys, values, output, gate, up and down the first, third, fifth and seventh;
        # attention's result and statistics, and the input.
        wide = model.heads_width + model.key_heads * model.key_width + model.inner_width
        wide += model.heads_width + model.width
        products = stream + formats.product * wide + FLOAT32 * model.heads
    return {
        "none": tokens * (kept // ranks + whole),
        "selective": tokens * (products // ranks + whole),
        "full": tokens * stream // ranks,
    }


def around_layers(
    recipe: Recipe, tokens: int, practice: Practice = LONGHAUL, ranks: int = 1
) -> Bytes:
    """Bytes kept by the embedding, the skips and the last norm, on each of so many ranks."""
    model, formats = recipe.model, Formats.of(recipe, practice)
    stream = formats.stream * model.width
    whole = formats.product * model.width if ranks > 1 else 0  # what the head reads
    into = 0 if whole else _into_product(model, formats)
    kept = stream + into if model.norm_placement == "pre" else 0
    kept += stream * (1 + model.embedding_norm)
    kept += stream * (model.layers // 2) if model.unet_skips else 0
    kept += formats.stream * model.key_heads * model.key_width * model.value_embeddings
    if model.table_width != model.width:
        kept += 2 * formats.product * model.table_width
    return tokens * (kept // ranks + whole)


def on_its_way(recipe: Recipe, tokens: int, ranks: int, practice: Practice = LONGHAUL) -> Bytes:
    """Bytes of gradients between a layer's parts while it goes backward, on each of the ranks that
    compute it: where a stretch is one rank's, they are summed from as many whole ones.
    """
    formats = Formats.of(recipe, practice)
    stretches = 2 * formats.stream // ranks
    whole = formats.product + formats.stream if ranks > 1 else 0
    return tokens * recipe.model.width * (stretches + whole)


def of_logits(recipe: Recipe, tokens: int, rows: int, on_cpu: bool) -> Bytes:
    """Bytes that logits over `rows` tokens, loss and their gradients take at the worst moment."""
    model, product = recipe.model, Formats.of(recipe).product
    if product != FLOAT32 and on_cpu and not (model.logit_softcap or model.z_loss):
        # By rows: see `model/head.py`.
        return tokens * rows * 2 * product + min(4 * tokens * rows * FLOAT32, WIDENED)
    # The hyperbolic tangent of the cap, and the z-loss, take a tensor each.
    tensors = _UNFUSED + bool(model.logit_softcap) + bool(model.z_loss)
    tensors += max((len(stage.weights) for stage in model.ahead_stages), default=0)
    return tokens * rows * tensors * FLOAT32


def of_chunked_loss(recipe: Recipe, tokens: int, padded_vocab: int, on_cpu: bool) -> Bytes | None:
    """Bytes that the loss takes at the worst moment if it takes logits chunk by chunk, the gradient
    of the head included; None if it takes them whole. See `model/chunked_loss.py`.
    """
    model, product = recipe.model, Formats.of(recipe).product
    rows = rows_at_once(tokens, padded_vocab, on_cpu)
    if rows == tokens or recipe.precision.half_weights == "fp16":
        return None
    # The logits, and the logarithms of the shares; on a CPU a wide copy of the logits between them.
    logit = product + FLOAT32 + (FLOAT32 if on_cpu and product != FLOAT32 else 0)
    if model.logit_softcap:  # before and after the cap, and the shares
        logit = 3 * FLOAT32
    to_head = FLOAT32 + (product if product != FLOAT32 else 0)
    width, most = model.table_width, rows * logit
    if not on_cpu:  # longer chunks, if Triton is there
        most = max(most, rows_at_once(tokens, padded_vocab, on_cpu, in_place=True) * product)
    return most * padded_vocab + padded_vocab * width * to_head + tokens * width * product


def _computed_in(formats: Formats, length: int, on_cpu: bool, written_out: bool) -> Bytes:
    """Bytes of an element of queries, keys and values."""
    short = on_cpu and length <= _SHORT_ON_CPU
    return FLOAT32 if short and not written_out else formats.product


def _written_out(
    model: ModelSection, formats: Formats, length: int, on_cpu: bool, trains: bool
) -> bool:
    """Whether attention is whole products of short sequences."""
    masked = model.document_mask or (model.window is not None and model.window < length)
    asked = masked or (trains and model.dropped_attention) or model.score_softcap
    plain = not asked and model.heads == model.key_heads
    return on_cpu and length <= _SHORT_ON_CPU and formats.bf16 and plain


def _into_product(model: ModelSection, formats: Formats) -> Bytes:
    """What a product keeps of a norm's result: a copy in its own format; without a learned scale
    and without a cast it is the norm's own unit vectors.
    """
    same = formats.product == formats.stream and not model.norm_scale and model.norm == "rmsnorm"
    return 0 if same else formats.product * model.width


def _attention(
    model: ModelSection, formats: Formats, length: int, on_cpu: bool
) -> tuple[Bytes, Bytes]:
    """Bytes a token, and those of products and attention itself."""
    keys = model.key_heads * model.key_width
    width = model.heads_width
    mixed = width + 2 * keys
    written_out = _written_out(model, formats, length, on_cpu, trains=True)
    computed = _computed_in(formats, length, on_cpu, written_out)
    # Computed in float32, the result is narrowed again.
    widened = formats.product * width if computed != formats.product else 0
    statistics = FLOAT32 * model.heads
    products = computed * (mixed + width) + statistics + widened
    if written_out:  # the shares of all keys, which no kernel keeps to itself
        products += computed * model.heads * length - statistics
    kept = products
    if model.qk_norm:
        kept += FLOAT32 * (width + keys) * (1 + model.qk_norm_scale)
    # Written out, queries and keys are copies by then.
    if (model.positions == "rotary" or model.split_score_scale) and not written_out:
        kept += computed * (width + keys)
    if on_cpu and model.dropped_attention:
        # No kernel of the CPU's drops attention weights, so they are written out: the shares, which
        # of them stay, what is left of them; and scaled copies of queries and keys.
        kept += (2 * FLOAT32 + 1) * model.heads * length + computed * (width + keys)
    if model.score_softcap:  # before and after the cap, and the shares
        kept += 3 * FLOAT32 * model.heads * length
    if model.value_residual:
        kept += 2 * computed * keys
    if model.attention_head_scale:
        kept += computed * width
    return kept, products


def _mlp(model: ModelSection, formats: Formats) -> tuple[Bytes, Bytes]:
    inner, product = model.inner_width, formats.product
    if model.gated:  # both halves of the product, the bent one, and their product
        kept = 4 * product * inner
        wide = 2
    else:
        # ReLU keeps its own result, which the next product keeps anyway.
        kept = (1 if model.activation == "relu" else 2) * product * inner
        wide = 1
    if model.mlp_inner_norm:
        kept += formats.stream * inner
    return kept, wide * product * inner


_ROTATED = 4
"""Tensors of the size of queries and keys while these are rotated: they, their halves swapped,
their products with the cosines, and the sum."""


def in_layers(recipe: Recipe, tokens: int, length: int, on_cpu: bool, ranks: int = 1) -> Bytes:
    """Bytes that layers and what they share take at once in an evaluation, at the worst moment, on
    each of the `ranks` that compute them.
    """
    model, formats = recipe.model, Formats.of(recipe)
    stream, keys = formats.stream * model.width, model.key_heads * model.key_width
    shared = stream * (1 + 2 * model.input_mix)
    shared += stream * (model.layers // 2) if model.unet_skips else 0
    shared += formats.weight * keys * model.value_embeddings
    if model.value_residual:  # a view holds all of the first layer's queries, keys and values
        written_out = _written_out(model, formats, length, on_cpu, trains=False)
        computed = _computed_in(formats, length, on_cpu, written_out)
        shared += computed * (model.heads_width + 2 * keys)
    attends = _attention_evaluated(model, formats, length, on_cpu)
    within = max(attends, _mlp_evaluated(model, formats)) // ranks
    if ranks > 1:
        # What was gathered; at the end with it a sum's part, and this by stretches.
        whole = formats.product * model.width
        inner = model.inner_width * (3 if model.gated else 1)
        ends = formats.product * max(model.heads_width, inner) // ranks
        within = max(within + whole, 3 * whole + ends)
    return tokens * (shared // ranks + within)


def of_a_chunk(recipe: Recipe, tokens: int, rows: int, padded_vocab: int, on_cpu: bool) -> Bytes:
    """Bytes that a chunk of an evaluation's logits over `rows` tokens takes with its loss,
    and what the head reads for all; `padded_vocab` of all ranks decides on the length of a chunk.
    """
    model, formats = recipe.model, Formats.of(recipe)
    copied = formats.product if formats.product != formats.stream else 0
    reads = (formats.stream + copied) * model.width
    chunk = min(tokens, max(1, LOGITS_AT_ONCE // padded_vocab)) * rows
    logits = chunk * formats.product
    widened = chunk * 2 * FLOAT32  # with a cap: what goes into it and what comes out of it
    if formats.product == FLOAT32 and not model.logit_softcap:
        widened = chunk * FLOAT32
    elif on_cpu and not model.logit_softcap:
        widened = min(widened, WIDENED // 2)
    return tokens * reads + logits + widened


def _attention_evaluated(model: ModelSection, formats: Formats, length: int, on_cpu: bool) -> Bytes:
    """Bytes a token while a layer attends, beside the stream."""
    width, keys = model.heads_width, model.key_heads * model.key_width
    written_out = _written_out(model, formats, length, on_cpu, trains=False)
    computed = _computed_in(formats, length, on_cpu, written_out)
    mixed = formats.product * (width + 2 * keys)
    if written_out:
        wide = FLOAT32 * (width + keys)
        own = wide * (1 + model.qk_norm)
        turned = own + (_ROTATED - 1) * wide if model.positions == "rotary" else 0
        # Queries and keys as they came and with heads apart, values, scores and shares.
        scored = 2 * wide + computed * keys + 2 * FLOAT32 * model.heads * length
        # The same with copies for the products, the shares narrowed, and the result.
        gathered = 2 * wide + computed * (2 * width + 2 * keys + model.heads * length)
        return formats.stream * model.width + mixed + max(turned, scored, gathered)
    if computed != formats.product:
        mixed += computed * (width + 2 * keys)
    both = (FLOAT32 if model.qk_norm else computed) * (width + keys)
    attends = computed * width + (both if model.qk_norm or model.positions == "rotary" else 0)
    if model.positions == "rotary":
        own = both if model.qk_norm else 0  # otherwise a view of what was mixed
        attends = max(attends, own + (_ROTATED - 1) * FLOAT32 * (width + keys))
    elif model.split_score_scale:
        attends += both
    if model.score_softcap:
        attends += 3 * FLOAT32 * model.heads * length
    return formats.stream * model.width + mixed + attends


def _mlp_evaluated(model: ModelSection, formats: Formats) -> Bytes:
    """Bytes a token while a layer's MLP computes, beside the stream that came in."""
    inner, product = model.inner_width, formats.product
    around = (2 * formats.stream + product) * model.width
    # Gated: both halves of the product, the bent one and what it multiplies. Otherwise the product
    # and the bent one, which a square needs besides.
    wide = 4 if model.gated else 3 if model.activation == "relu2" else 2
    normed = formats.stream * inner if model.mlp_inner_norm else 0
    return around + max(wide * product * inner, normed + wide // 2 * product * inner)
