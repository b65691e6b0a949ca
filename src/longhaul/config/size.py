"""Parameters and FLOPs of a model, counted from its recipe alone, and the small twin of a recipe.

The twin has every switch as it is and every size for a laptop: what is wrong with a recipe for a
thousand GPUs that does not depend on size shows within minutes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longhaul.config.load import as_toml
from longhaul.config.model import ModelSection, smear_weights
from longhaul.config.recipe import Recipe


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameter counts, each of them exact."""

    tables: int
    """What is looked up: by tokens, by pairs of them, by positions."""
    projections: int
    """Matrices from the token table's width to the model's, and back."""
    blocks: int
    """Everything inside the blocks."""
    around_blocks: int
    """Norms before the first block and after the last, factors between blocks, `token_smear`."""
    head: int
    """Rows × width of the output product, whether tied to the token table or not."""
    tied_head: bool
    width: int
    """Of all heads together."""
    windows: tuple[int | None, ...]
    """Positions that each layer attends to; None: all."""

    @property
    def total(self) -> int:
        """Parameters stored."""
        stored_head = 0 if self.tied_head else self.head
        return self.tables + self.non_embedding + stored_head

    @property
    def non_embedding(self) -> int:
        """Parameters outside look-up tables and the head (arXiv 2001.08361, section 2.1)."""
        return self.projections + self.blocks + self.around_blocks

    @property
    def active(self) -> int:
        """N of PaLM's formula: what multiplies each token. The head product counts once, tied
        or not; look-up tables do not count.
        """
        return self.non_embedding + self.head

    def flops_per_token(
        self, span: int, causal: bool = False, stage_window: int | None = None
    ) -> int:
        """Training FLOPs per token, forward and backward (PaLM, arXiv 2204.02311, appendix B).

        Layers attend to `span` tokens, those with a window to fewer (`ModelSection.window_at`);
        `causal` counts only the part of the attention matrix that is not masked.
        """
        windows = [window and (stage_window or window) for window in self.windows]
        seen = [min(span, window or span) for window in windows]
        # Causal: half the square of the span, without the triangle beyond the window.
        attended = sum(s - s * s / (2 * span) if causal else s for s in seen)
        return 6 * self.active + round(12 * self.width * attended)


def known_vocabulary(recipe: Recipe) -> tuple[int, bool]:
    """Tokens of the vocabulary, and whether the recipe alone decides them."""
    tokenizer = recipe.tokenizer
    if tokenizer.kind == "bpe":
        return tokenizer.vocab_size or 8192, True
    if tokenizer.kind == "numbers" and tokenizer.vocab_size is not None:
        return tokenizer.vocab_size, True
    if tokenizer.kind == "bytes":
        return 256 + bool(tokenizer.end_of_text), True
    if tokenizer.kind == "characters":
        return 65, False
    return 50_257, False


def model_size(model: ModelSection, vocab_size: int) -> ModelSize:
    """Count the parameters of `model` with a tokenizer of `vocab_size` tokens."""
    rows, norm = model.padded_vocab(vocab_size), _norm(model, model.width)
    values = model.key_heads * model.key_width
    projected = model.table_width != model.width
    norms_around = model.embedding_norm + (model.norm_placement == "pre")
    return ModelSize(
        tables=(rows + model.bigram_rows) * model.table_width
        + model.value_embeddings * rows * values
        + (model.context * model.width if model.positions == "learned" else 0),
        projections=2 * model.table_width * model.width if projected else 0,
        blocks=sum(_block(model, layer) for layer in range(model.layers)),
        around_blocks=norms_around * norm
        + (model.layers // 2 if model.unet_skips else 0)
        + (smear_weights(model.table_width) if model.token_smear else 0),
        head=rows * model.table_width,
        tied_head=model.tied_head,
        width=model.heads_width,
        windows=tuple(model.window_of(layer) for layer in range(model.layers)),
    )


def _block(model: ModelSection, layer: int) -> int:
    norms = (2 + model.attention_out_norm + model.mlp_out_norm) * _norm(model, model.width)
    return norms + 2 * model.input_mix + _attention(model, layer) + _mlp(model)


def _attention(model: ModelSection, layer: int) -> int:
    values = model.key_heads * model.key_width
    mixed = model.heads_width + 2 * values
    products = _linear(model, model.width, mixed)
    products += _linear(model, model.heads_width, model.width)
    products += mixed if model.qkv_bias and not model.bias else 0
    products += 2 * model.key_width if model.qk_norm_scale else 0
    from_end = model.layers - layer
    has_table = layer < model.value_embeddings or from_end <= model.value_embeddings
    # Two shares for each mixture of values; the first layer's own are what the others mix in.
    mixtures = has_table + (model.value_residual and layer > 0)
    factors = model.heads if model.attention_head_scale else 0
    return products + 2 * mixtures + factors


def _mlp(model: ModelSection) -> int:
    width, inner = model.width, model.inner_width
    up = _linear(model, width, 2 * inner if model.gated else inner)
    inner_norm = _norm(model, inner) if model.mlp_inner_norm else 0
    return up + inner_norm + _linear(model, inner, width)


def _linear(model: ModelSection, into: int, out: int) -> int:
    return into * out + (out if model.bias else 0)


def _norm(model: ModelSection, width: int) -> int:
    if not model.norm_scale:
        return 0
    return 2 * width if model.norm == "layernorm" and model.bias else width


_LAYERS, _HEADS, _HEAD_WIDTH, _CONTEXT = 4, 4, 16, 64
_SEQUENCES, _STEPS, _WARMUP = 8, 200, 20
_VOCABULARY = 512
_HIGHEST_LR = 3e-3


def shrunken(recipe: Recipe, own_data: bool = False) -> tuple[str, ...]:
    """Overrides that make the twin: 4 layers, width 64, context 64, 200 steps of 512 tokens.

    Unless the caller has a text of its `own_data`, it is the Python standard library.
    """
    settings = {"name": f"{recipe.name}-small"} | _model(recipe) | _training(recipe)
    if not own_data:
        settings["data.sources"] = [{"name": "python-stdlib", "path": "python-stdlib"}]
        settings |= {"data.stages": [], "data.contamination.action": "off"}
    if recipe.tokenizer.kind in ("bpe", "file"):
        settings["tokenizer"] = {"kind": "bpe", "vocab_size": _VOCABULARY, "training_mb": 1.0}
    return tuple(f"{path}={as_toml(value)}" for path, value in settings.items())


def _model(recipe: Recipe) -> dict[str, object]:
    model = recipe.model
    heads, layers = min(model.heads, _HEADS), min(model.layers, _LAYERS)
    width, context = heads * _HEAD_WIDTH, min(model.context, _CONTEXT)
    shape: dict[str, object] = {"layers": layers, "heads": heads, "width": width}
    shape["context"] = context
    smaller: dict[str, Callable[[Any], object]] = {
        "head_width": lambda each: 2 * max(1, round(each * width / model.width / 2)),
        "kv_heads": lambda number: max(1, heads * number // model.heads),
        "mlp_width": lambda inner: max(1, round(inner / model.width * width)),
        "embedding_width": lambda inner: max(8, round(inner / model.width * width)),
        "window": lambda tokens: min(tokens, context // 2),
        "window_stages": lambda stages: [],
        "ahead_stages": lambda stages: [],
        "window_full_every": lambda every: min(every, layers),
        "bigram_rows": lambda rows: min(rows, 2 * _VOCABULARY),
        "value_embeddings": lambda tables: min(tables, layers // 2),
    }
    given = {name: getattr(model, name) for name in smaller}
    shape |= {name: smaller[name](value) for name, value in given.items() if value}
    own = shape.get("head_width", _HEAD_WIDTH)
    assert isinstance(own, int)
    if int(own * model.rotary_share) % 2 or own * model.rotary_share < 1:
        shape["rotary_share"] = 2 / own if own > 2 else 1.0
    if model.rotary_scaling in ("llama3", "yarn"):
        shape["rotary_original_context"] = context // 2
    return {f"model.{name}": value for name, value in shape.items()}


def _training(recipe: Recipe) -> dict[str, object]:
    context = min(recipe.model.context, _CONTEXT)
    narrower = recipe.model.width / (min(recipe.model.heads, _HEADS) * _HEAD_WIDTH)
    settings: dict[str, object] = {
        # As one table: a limit or a shape that the large recipe gives must not stay behind.
        "train": {"steps": _STEPS},
        "batch": {"sequences": _SEQUENCES, "sequence_length": context},
        # Narrow models bear higher rates (arXiv 2203.03466).
        "optim.lr": max(recipe.optim.lr, min(_HIGHEST_LR, recipe.optim.lr * narrower)),
        "optim.schedule.warmup_steps": min(recipe.optim.schedule.warmup_steps, _WARMUP),
        "evaluation.interval_steps": _STEPS // 2,
        "evaluation.tokens": 16_384,
        "checkpoint.interval_steps": _STEPS // 2,
        "machine.compile": False,
    }
    if recipe.init.from_ is not None:
        settings["init"] = {}  # weights of the true size fit no twin
    if recipe.precision.compute == "auto":
        # Which format is fastest at this shape says nothing of the true one.
        settings["precision.compute"] = "float32"
    if recipe.optim.schedule.decay_steps is not None:
        settings["optim.schedule.decay_steps"] = _STEPS
    return settings
