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
    yield from _elastic(recipe)


def _elastic(recipe: Recipe) -> Iterator[Combination]:
    if not recipe.parallel.elastic:
        return
    processes, each = recipe.machine.processes, recipe.parallel.shard or 1
    if processes <= each:
        yield (
            ("parallel.elastic", "machine.processes"),
            f"one replica alone has no peer to come back to: machine.processes is {processes}",
        )
    elif processes % each:
        yield (
            ("parallel.elastic", "parallel.shard", "machine.processes"),
            f"machine.processes {processes} is no multiple of parallel.shard {each}",
        )
    if recipe.supervise.node:
        yield ("parallel.elastic", "supervise.node"), "replicas are processes of one machine so far"
    for name in ("replicate", "tensor", "pipeline"):
        if getattr(recipe.parallel, name) not in (None, 1):
            yield (
                ("parallel.elastic", f"parallel.{name}"),
                f"a replica is cut by parallel.shard alone so far, not by parallel.{name}",
            )


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


def _pipeline(recipe: Recipe) -> Iterator[Combination]:
    stages, each, model = recipe.parallel.pipeline, recipe.parallel.stages_per_rank, recipe.model
    if stages == 1:
        if each > 1:
            yield (
                ("parallel.stages_per_rank", "parallel.pipeline"),
                f"{each} stages of each rank need a pipeline of several ranks: parallel.pipeline "
                "is 1",
            )
        return
    if each > 1 and model.layers % (stages * each):
        yield (
            ("parallel.stages_per_rank", "parallel.pipeline", "model.layers"),
            f"parallel.pipeline × parallel.stages_per_rank: {stages} × {each} stages cannot have "
            f"equally many of model.layers {model.layers}",
        )
    elif stages > model.layers:
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
