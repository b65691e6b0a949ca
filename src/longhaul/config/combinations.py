"""Combinations of settings that cannot work, found before any device is touched.

A problem names the dotted settings involved, the one to blame first, and says why.
"""

from collections.abc import Iterator

from longhaul.config.data import BatchStage
from longhaul.config.model_combinations import Combination, model_problems, repeated
from longhaul.config.recipe import Recipe, source_name

_NOT_ACROSS_STAGES = {
    "unet_skips": "its skips lead from the first half of the layers to the second",
    "value_residual": "every layer reads the first layer's values",
    "value_embeddings": "the last layers read the token tables of the first",
    "input_mix": "every layer reads the embedded input",
}


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
    if recipe.precision.float8:
        paths = "parallel.tensor", "precision.float8"
        yield paths, "tensor ranks do not take precision.float8 so far"
    if model.token_smear:
        yield (
            ("parallel.tensor", "model.token_smear"),
            "model.token_smear reads the token before, which another tensor rank may have",
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
    if recipe.machine.compiles:
        yield (
            ("parallel.pipeline", "machine.compile"),
            "stages of a pipeline are not compiled; switch machine.compile off",
        )


def combination_problems(recipe: Recipe) -> Iterator[Combination]:
    """Every impossible combination."""
    yield from model_problems(recipe.model)
    for number, stage in enumerate(recipe.batch_stages()):
        yield from _batch(recipe, stage, f"batch.stages.{number - 1}" if number else "batch")
    for check in (
        _limits, _loss_scale, _rounding, _text, _mixture, _tensor, _pipeline, _elastic, _deadlines,
        _nodes,
    ):  # fmt: skip
        yield from check(recipe)


def _batch(recipe: Recipe, stage: BatchStage, where: str) -> Iterator[Combination]:
    sequences, length = stage.sequences, stage.sequence_length
    block, micro = recipe.block_length(), recipe.batch.micro_sequences
    sequences_key, length_key = f"{where}.sequences", f"{where}.sequence_length"
    if length > recipe.model.context:
        yield (
            (length_key, "model.context"),
            f"{length} does not fit model.context {recipe.model.context}",
        )
    if block % length:
        yield (length_key,), f"{length} does not divide the longest sequence length {block}"
    elif sequences % (block // length):
        yield (
            (sequences_key, length_key),
            f"{sequences} sequences of {length} do not fill whole blocks of {block} tokens; "
            f"a multiple of {block // length} would",
        )
    if isinstance(micro, int) and sequences % micro:
        yield (
            ("batch.micro_sequences", sequences_key),
            f"{micro} does not divide {sequences_key} {sequences}",
        )


def _limits(recipe: Recipe) -> Iterator[Combination]:
    train, schedule = recipe.train, recipe.optim.schedule
    if recipe.optim.cautious_decay and recipe.optim.name not in ("adamw", "muon"):
        yield (
            ("optim.cautious_decay", "optim.name"),
            f"{recipe.optim.name} decays every place of a weight alike; adamw and muon can choose",
        )
    if repeated(stage.from_step for stage in recipe.batch_stages()):
        yield ("batch.stages",), "two stages begin at the same step (the first holds from step 0)"
    if train.steps is not None and train.tokens is not None:
        yield ("train.tokens", "train.steps"), "give train.steps or train.tokens, not both"
    if train.steps is None and train.tokens is None:
        if train.max_hours is None:
            yield (
                ("train.steps",),
                "the run has no end: give train.steps, train.tokens or train.max_hours",
            )
        elif schedule.shape != "constant" and schedule.decay_steps is None:
            yield (
                ("optim.schedule.shape", "train.max_hours"),
                f"a {schedule.shape} schedule needs its length: give train.steps, train.tokens "
                "or optim.schedule.decay_steps beside train.max_hours",
            )
    end = schedule.decay_steps or recipe.total_steps()
    if end is None or schedule.shape == "constant":
        return
    if schedule.from_step >= end:
        yield (
            ("optim.schedule.from_step",),
            f"{schedule.from_step} is not before the schedule's end at step {end}",
        )
    elif schedule.warmup_steps >= end - schedule.from_step:
        yield (
            ("optim.schedule.warmup_steps",),
            f"{schedule.warmup_steps} warm-up steps leave nothing of {end - schedule.from_step} "
            "steps",
        )


def _rounding(recipe: Recipe) -> Iterator[Combination]:
    rounding, half = recipe.optim.rounding, recipe.precision.half_weights
    if recipe.precision.float8 and half:
        yield (
            ("precision.float8", "precision.compute"),
            f"products in float8 are of float32 weights, not of precision.compute {half}_weights",
        )
    if rounding == "nearest":
        return
    paths = "optim.rounding", "precision.compute"
    if half is None:
        yield paths, f'{rounding}: float32 weights are not rounded; "bf16_weights" are'
    elif rounding == "stochastic" and half == "fp16":
        yield paths, 'stochastic: fp16 weights have another exponent; take "compensated"'


def _loss_scale(recipe: Recipe) -> Iterator[Combination]:
    scale = recipe.optim.loss_scale
    if not scale.floor <= scale.initial <= scale.ceiling:
        yield (
            ("optim.loss_scale.initial", "optim.loss_scale.floor", "optim.loss_scale.ceiling"),
            f"{scale.initial:g} does not lie between the floor {scale.floor:g} and the ceiling "
            f"{scale.ceiling:g}",
        )


def _text(recipe: Recipe) -> Iterator[Combination]:
    tokenizer = recipe.tokenizer
    if recipe.model.document_mask and not tokenizer.end_of_text:
        yield (
            ("model.document_mask", "tokenizer.end_of_text"),
            "documents are told apart by the end-of-text token, and there is none",
        )
    path_and_kind = ("tokenizer.path", "tokenizer.kind")
    if tokenizer.kind == "file" and not tokenizer.path:
        yield path_and_kind, "kind `file` needs the path of a tokenizer"
    if tokenizer.kind != "file" and tokenizer.path:
        yield path_and_kind, f"a path is read only by kind `file`, not `{tokenizer.kind}`"
    for setting, wanted in (
        ("end_of_text", isinstance(tokenizer.end_of_text, str)),
        ("begin_of_text", tokenizer.begin_of_text is not False),
    ):
        if wanted and tokenizer.kind != "file":
            yield (
                (f"tokenizer.{setting}", "tokenizer.kind"),
                f"only kind `file` has tokens to choose from, not `{tokenizer.kind}`",
            )
    size_and_kind = ("tokenizer.vocab_size", "tokenizer.kind")
    if tokenizer.kind == "numbers":
        if tokenizer.vocab_size is None:
            yield size_and_kind, "kind `numbers` needs to know how many numbers there are"
    elif tokenizer.vocab_size is not None:
        if tokenizer.kind != "bpe":
            yield (
                size_and_kind,
                f"kind `{tokenizer.kind}` decides its own vocabulary; only `bpe` and `numbers` "
                "take a size",
            )
        elif tokenizer.vocab_size < 257:
            yield (
                ("tokenizer.vocab_size",),
                f"{tokenizer.vocab_size} cannot hold the 256 bytes and end-of-text; 257 would",
            )


def _mixture(recipe: Recipe) -> Iterator[Combination]:
    sources, stages = recipe.data.sources, recipe.data.stages
    names = [source_name(source.name, source.path) for source in sources]
    for name in repeated(names):
        yield ("data.sources",), f"two sources are called {name}; give each a name of its own"
    weights = {name: source.weight for name, source in zip(names, sources, strict=True)}
    if not any(weights.values()):
        yield ("data.sources",), "every source has weight 0"
    if repeated(stage.from_draw for stage in stages):
        yield ("data.stages",), "two stages begin at the same draw"
    for number, stage in enumerate(stages):
        where = (f"data.stages.{number}.weights", "data.sources")
        for name in stage.weights:
            if name not in names:
                yield where, f"no source is called {name}; there are {', '.join(names)}"
        if not any((weights | stage.weights).values()):
            yield where, "every source has weight 0"


def _deadlines(recipe: Recipe) -> Iterator[Combination]:
    """A deadline that strikes before a shorter thing's own would name the wrong culprit."""
    deadlines = recipe.supervise.deadlines()
    step, collective = deadlines.pop("deadline_s"), deadlines.pop("collective_s")
    for name, seconds in deadlines.items():
        if seconds < step:
            yield (
                (f"supervise.{name}", "supervise.deadline_s"),
                f"{seconds:g} is below the {step:g} of a step",
            )
        if collective <= seconds:
            yield (
                ("supervise.collective_s", f"supervise.{name}"),
                f"{collective:g} is not beyond supervise.{name} {seconds:g}: collectives would "
                "fail before the watchdog could say who did not arrive",
            )


def _nodes(recipe: Recipe) -> Iterator[Combination]:
    nodes = recipe.supervise.node
    for name in repeated(node.name for node in nodes):
        yield ("supervise.node",), f"two nodes are called {name}; give each a name of its own"
    if len({node.slots for node in nodes}) > 1:
        yield ("supervise.node",), "nodes have different numbers of slots; give each the same"
    if nodes and all(node.spare for node in nodes):
        yield ("supervise.node",), "every node is a spare; at least one must not be"
    slots, processes = sum(node.slots for node in nodes if not node.spare), recipe.machine.processes
    if nodes and processes not in (1, slots):
        yield (
            ("machine.processes", "supervise.node"),
            f"{processes} processes are not the {slots} slots of the nodes that are no spares; "
            "leave machine.processes (--nproc) out",
        )
