"""What a run will have read by its end, said before it begins: how often each source, and from
which step on a cap gives its share to the others.

OPT-175B was to train on 300B tokens and had 180B; it was noticed by people who counted.
"""

from collections.abc import Iterator

from longhaul.config.recipe import Recipe, source_name
from longhaul.core.errors import DataError
from longhaul.data.mixture import MixturePlan

_ROUNDED_BY = 0.1
"""Share of a share that rounding to whole draws of a cycle may move without a word."""


def draws_at(recipe: Recipe, step: int) -> int:
    """Blocks that `step` updates take; those that decisions skip are not known before."""
    stages, block = recipe.batch_stages(), recipe.block_length()
    ends = [*(stage.from_step for stage in stages[1:]), step]
    return sum(
        stage.sequences * stage.sequence_length // block
        * max(0, min(end, step) - stage.from_step)
        for stage, end in zip(stages, ends, strict=True)
    )  # fmt: skip


def step_at(recipe: Recipe, draw: int) -> int:
    """Updates made when the block of `draw` is read."""
    stages, block, begin = recipe.batch_stages(), recipe.block_length(), 0
    for number, stage in enumerate(stages):
        each = stage.sequences * stage.sequence_length // block
        last = number + 1 == len(stages)
        end = begin if last else begin + each * (stages[number + 1].from_step - stage.from_step)
        if last or draw < end:
            return stage.from_step + (draw - begin) // each
        begin = end
    raise AssertionError("a recipe has at least one stage")


def forecast(plan: MixturePlan, recipe: Recipe) -> Iterator[str]:
    """Lines for a person. DataError if every source will have been read as often as it may be
    before the run is done.
    """
    for name, blocks in zip(plan.names, plan.block_counts, strict=True):
        if blocks < 1:
            yield f"{name} has not enough text for one training sequence"
    steps = recipe.total_steps()
    draws = None if steps is None else draws_at(recipe, steps)
    for draw, name in plan.left_out:
        if draws is None or draw < draws:
            most = next(e for n, e in _caps(recipe) if n == name)
            yield (
                f"{name} reaches data.sources.max_epochs {most:g} at step "
                f"{step_at(recipe, draw):,}"
                + ("" if plan.exhausted == draw else "; its share goes to the others")
            )
    if plan.exhausted is not None and (draws is None or plan.exhausted < draws):
        at = step_at(recipe, plan.exhausted)
        if steps is not None:
            raise DataError(
                f"the run has {steps:,} steps, and at step {at:,} every source will have been read "
                "as often as data.sources.max_epochs allows",
                f"add text, raise max_epochs, or set train.steps={at}",
            )
        yield f"from step {at:,} on no source has anything left to read, and all go on"
    if steps is not None and draws:
        taken, several = plan.taken(draws), len(plan.names) > 1
        read = [
            f"{name} {taken[name] / blocks:.2f} times"
            + (f" ({taken[name] / draws:.1%} of the tokens)" if several else "")
            for name, blocks in zip(plan.names, plan.block_counts, strict=True)
            if taken[name] and blocks
        ]
        yield f"read by step {steps:,}: {', '.join(read)}"
    yield from _rounded(plan)


def _caps(recipe: Recipe) -> Iterator[tuple[str, float]]:
    for source in recipe.data.sources:
        if source.max_epochs is not None:
            yield source_name(source.name, source.path), source.max_epochs


def _rounded(plan: MixturePlan) -> Iterator[str]:
    """Where a cycle that the recipe gives is too short for a share."""
    stage = plan.stages[-1]
    after = stage.from_draw + (stage.cycle or 1)
    before, then = plan.taken(stage.from_draw), plan.taken(after)
    for name, share in plan.shares(stage.from_draw).items():
        gets = (then[name] - before[name]) / (after - stage.from_draw)
        if abs(gets - share) > _ROUNDED_BY * share:
            yield (
                f"{name} is asked for {share:.3%} of the tokens and gets {gets:.3%}, as "
                f'order.cycle is {stage.cycle:,} draws; order.cycle = "auto" is finer'
            )
