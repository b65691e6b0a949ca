"""Layouts that a model or a batch cannot be dealt out by.

Enters: a recipe whose single settings are valid. Leaves: problems, each with the dotted settings
involved (the one to blame first) and why. Never knows: how many processes there will be.
"""

from collections.abc import Iterator

from longhaul.config.model_combinations import Combination
from longhaul.config.recipe import Recipe

_NOT_ACROSS_STAGES = {
    "unet_skips": "its skips lead from the first half of the layers to the second",
    "value_residual": "every layer reads the first layer's values",
    "value_embeddings": "the last layers read the token tables of the first",
    "input_mix": "every layer reads the embedded input",
}


def parallel_problems(recipe: Recipe) -> Iterator[Combination]:
    """Every impossible combination."""
    yield from _tensor(recipe)
    yield from _pipeline(recipe)


def _tensor(recipe: Recipe) -> Iterator[Combination]:
    ways, model = recipe.parallel.tensor, recipe.model
    if ways == 1:
        return
    for name, number in (
        ("heads", model.heads),
        ("kv_heads", model.key_heads),
        ("mlp_width", model.inner_width),
    ):
        if number % ways and (name != "kv_heads" or model.kv_heads):
            yield (
                ("parallel.tensor", f"model.{name}"),
                f"{ways} tensor ranks cannot share model.{name} {number} evenly",
            )
    for number, stage in enumerate(recipe.batch_stages()):
        where = f"batch.stages.{number - 1}" if number else "batch"
        if stage.sequence_length % ways:
            yield (
                ("parallel.tensor", f"{where}.sequence_length"),
                f"{ways} tensor ranks cannot share {where}.sequence_length {stage.sequence_length} "
                "evenly",
            )
    if model.mlp_inner_norm:
        yield (
            ("parallel.tensor", "model.mlp_inner_norm"),
            "the inner width that model.mlp_inner_norm normalises over is cut by tensor ranks",
        )


def _pipeline(recipe: Recipe) -> Iterator[Combination]:
    stages, model = recipe.parallel.pipeline, recipe.model
    if stages == 1:
        return
    if stages > model.layers:
        yield (
            ("parallel.pipeline", "model.layers"),
            f"{stages} stages cannot have a layer each: model.layers is {model.layers}",
        )
    for name, why in _NOT_ACROSS_STAGES.items():
        if getattr(model, name):
            yield (
                ("parallel.pipeline", f"model.{name}"),
                f"model.{name} cannot cross pipeline stages: {why}",
            )
    if recipe.batch.micro_sequences == "auto":
        yield (
            ("parallel.pipeline", "batch.micro_sequences"),
            "what fits a pipeline's stages is not measured; give batch.micro_sequences a number",
        )
    if recipe.machine.compile:
        yield (
            ("parallel.pipeline", "machine.compile"),
            "stages of a pipeline are not compiled; switch machine.compile off",
        )
