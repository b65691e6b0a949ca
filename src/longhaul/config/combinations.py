"""Combinations of settings that cannot work, found before any device is touched.

Enters: a recipe whose single settings are valid. Leaves: problems, each with the dotted
settings involved (the one to blame first) and why. Never knows: files, overrides, devices.
"""

from collections.abc import Iterator

from longhaul.config.batch import BatchStage
from longhaul.config.model_combinations import Combination, model_problems
from longhaul.config.parallel_combinations import parallel_problems
from longhaul.config.recipe import Recipe, source_name


def combination_problems(recipe: Recipe) -> Iterator[Combination]:
    """Every impossible combination."""
    yield from model_problems(recipe.model)
    for number, stage in enumerate(recipe.batch_stages()):
        yield from _batch(recipe, stage, f"batch.stages.{number - 1}" if number else "batch")
    yield from _limits(recipe)
    yield from _loss_scale(recipe)
    yield from _text(recipe)
    yield from _mixture(recipe)
    yield from parallel_problems(recipe)
    yield from _deadlines(recipe)
    yield from _nodes(recipe)


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
    starts = [stage.from_step for stage in recipe.batch_stages()]
    if len(set(starts)) != len(starts):
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
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield ("data.sources",), f"two sources are called {name}; give each a name of its own"
    begins = [stage.from_draw for stage in stages]
    if len(set(begins)) != len(begins):
        yield ("data.stages",), "two stages begin at the same draw"
    for number, stage in enumerate(stages):
        where = (f"data.stages.{number}.weights", "data.sources")
        for name in stage.weights:
            if name not in names:
                yield where, f"no source is called {name}; there are {', '.join(names)}"
        if not any(stage.weights.get(name, 1) for name in names):
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
    names = [node.name for node in nodes]
    for name in sorted({name for name in names if names.count(name) > 1}):
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
