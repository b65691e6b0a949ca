"""The small twin of a recipe: every switch as it is, every size for a laptop.

A recipe for a thousand GPUs can so be tried on any machine: what is wrong with it that does not
depend on size shows within minutes.

Enters: a recipe. Leaves: overrides, as they would be given to `--set`, that make its twin.
Never knows: files, devices.
"""

import json

from longhaul.config.recipe import Recipe

_LAYERS, _HEADS, _HEAD_WIDTH, _CONTEXT = 4, 4, 16, 64
_SEQUENCES, _STEPS, _WARMUP = 8, 200, 20
_VOCABULARY = 512
_HIGHEST_LR = 3e-3


def shrunken(recipe: Recipe, own_data: bool = False) -> tuple[str, ...]:
    """Overrides that make the twin: 4 layers, width 64, context 64, 200 steps of 512 tokens.

    Args:
        recipe: of any size.
        own_data: the caller gives a text; otherwise it is the Python standard library, with a
            small vocabulary.
    """
    settings = {"name": f"{recipe.name}-small"} | _model(recipe) | _training(recipe)
    if not own_data:
        settings["data.sources"] = [{"name": "python-stdlib", "path": "python-stdlib"}]
    if recipe.tokenizer.kind in ("bpe", "file"):
        settings["tokenizer"] = {"kind": "bpe", "vocab_size": _VOCABULARY, "training_mb": 1.0}
    return tuple(f"{path}={_toml(value)}" for path, value in settings.items())


def _model(recipe: Recipe) -> dict[str, object]:
    model = recipe.model
    heads, layers = min(model.heads, _HEADS), min(model.layers, _LAYERS)
    width, context = heads * _HEAD_WIDTH, min(model.context, _CONTEXT)
    shape: dict[str, object] = {"layers": layers, "heads": heads, "width": width}
    shape["context"] = context
    if model.kv_heads is not None:
        shape["kv_heads"] = max(1, heads * model.kv_heads // model.heads)
    if model.mlp_width is not None:
        shape["mlp_width"] = max(1, round(model.mlp_width / model.width * width))
    if model.embedding_width is not None:
        shape["embedding_width"] = max(8, round(model.embedding_width / model.width * width))
    if model.window is not None:
        shape["window"] = min(model.window, context // 2)
        shape["window_stages"] = []
    if model.window_full_every:
        shape["window_full_every"] = min(model.window_full_every, layers)
    if model.bigram_rows:
        shape["bigram_rows"] = min(model.bigram_rows, 2 * _VOCABULARY)
    if model.value_embeddings:
        shape["value_embeddings"] = min(model.value_embeddings, layers // 2)
    if model.rotary_scaling == "llama3":
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
    if recipe.precision.compute == "auto":
        # Which format is fastest at this shape says nothing of the true one.
        settings["precision.compute"] = "float32"
    if recipe.optim.schedule.decay_steps is not None:
        settings["optim.schedule.decay_steps"] = _STEPS
    return settings


def _toml(value: object) -> str:
    """A value as TOML writes it; tables and lists inline."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value)
