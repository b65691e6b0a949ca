"""What a scaling ladder makes of a recipe: it at smaller sizes, by whole heads and in the same
proportions; and without one of its ideas at a time.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from longhaul.config.load import as_toml, value_at, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.config.size import known_vocabulary, model_size
from longhaul.core.errors import RecipeError, UsageError
from longhaul.core.units import short_count
from longhaul.plan.ladder.search import Idea

_GROWTHS = (4.0, 3.0, 2.0)
"""From one size to the next, in parameters: the first for which there are heads enough."""

PLAIN: dict[str, object] = {
    "model.positions": "learned", "model.norm": "layernorm", "model.embedding_norm": False,
    "model.attention_out_norm": False, "model.mlp_inner_norm": False, "model.qk_norm": False,
    "model.attention_head_scale": False, "model.document_mask": False,
    "model.activation": "gelu", "model.bigram_rows": 0, "model.logit_softcap": 0.0,
    "model.z_loss": 0.0, "model.value_residual": False, "model.value_embeddings": 0,
    "model.input_mix": False, "model.unet_skips": False, "model.zero_projections": False,
    "model.zero_head": False, "model.token_smear": False,
    "model.parallel_residual": False,
}  # fmt: skip
"""What GPT-2 does in place of each switch. What changes the scale of rates, such as the optimizer,
is not here: without a rate of its own it would be compared at the wrong one."""
NO_IDEAS = "none"


@dataclass(frozen=True, slots=True)
class LadderSize:
    """One size of a recipe."""

    layers: int
    width: int
    parameters: int
    """Outside look-up tables and the head, as the x axis of scaling laws (arXiv 2001.08361)."""
    flops_per_token: int
    steps: int
    tokens: int
    """Target tokens of a run."""
    settings: dict[str, Any]
    """What differs from the recipe, by dotted path."""

    @property
    def name(self) -> str:
        """Layers × width."""
        return f"{self.layers}x{self.width}"

    @property
    def flops(self) -> float:
        """Of one run, forward and backward."""
        return float(self.tokens) * self.flops_per_token


def ladder_sizes(
    recipe: Recipe, count: int, up_to: float | None, tokens_per_parameter: float | None
) -> tuple[LadderSize, ...]:
    """`count` sizes to learn from and a last one to predict, by rising number of parameters.

    Heads keep their width, as many queries share a key as before, layers shrink with the width.
    From one size to the next parameters grow four times, three times or twice, whichever the
    recipe has heads for. The last size is the recipe's own, or the largest with no more than
    `up_to` parameters. Each trains on as many tokens as the recipe says, or on
    `tokens_per_parameter`, with everything that is timed in steps moved in proportion. UsageError
    if the recipe has too few heads for so many sizes, or says no length.
    """
    if recipe.total_steps() is None:
        raise UsageError(
            f"recipe {recipe.name}: only hours limit it, so nothing says how long a size trains",
            "give --set train.steps=N",
        )
    model = recipe.model
    together = model.heads // model.key_heads
    all_heads = range(together, model.heads + 1, together)
    possible = [size for heads in all_heads for size in _size(recipe, heads)]
    possible = [size for size in possible if up_to is None or size.parameters <= up_to]
    for growth in _GROWTHS:
        if chosen := _spaced(possible, count, growth):
            return tuple(_trained_on(recipe, size, tokens_per_parameter) for size in chosen)
    most = "" if up_to is None else f" of at most {short_count(up_to)} parameters"
    raise UsageError(
        f"recipe {recipe.name}: its {model.heads} heads make {len(possible)} sizes{most}, too few "
        f"or too close for {count} and the next one",
        "give --set model.heads=N with more, narrower heads, or another --up-to",
    )


def size_at(recipe: Recipe, share: float, tokens: int | None = None) -> LadderSize:
    """The recipe with this share of its heads, at its own length or so many tokens; UsageError if
    that is no size of it.
    """
    model = recipe.model
    together = model.heads // model.key_heads
    heads = max(together, round(model.heads * share / together) * together)
    for size in _size(recipe, heads):
        per_parameter = None if tokens is None else tokens / size.parameters
        return _trained_on(recipe, size, per_parameter)
    raise UsageError(
        f"recipe {recipe.name}: {heads} of its {model.heads} heads make no model of it",
        "give another share, or --set model.heads=N with more, narrower heads",
    )


def _spaced(possible: list[LadderSize], count: int, growth: float) -> list[LadderSize] | None:
    """The largest, and below it those nearest to each `growth`-th part; None if there are none."""
    chosen, left = possible[-1:], possible[:-1]
    for part in range(1, count + 1):
        if not left:
            return None
        aim = math.log(chosen[-1].parameters) - part * math.log(growth)
        nearest = min(left, key=lambda size: abs(math.log(size.parameters) - aim))
        chosen.insert(0, nearest)
        left = left[: left.index(nearest)]
    return chosen


def _size(recipe: Recipe, heads: int) -> Iterator[LadderSize]:
    """The recipe with so many heads; nothing where its switches cannot have that shape."""
    model = recipe.model
    width, share = model.width * heads // model.heads, heads / model.heads
    layers = max(1, round(model.layers * share))
    settings: dict[str, Any] = {"layers": layers, "heads": heads, "width": width}
    if model.kv_heads:
        settings["kv_heads"] = model.kv_heads * heads // model.heads
    for name in ("mlp_width", "embedding_width"):
        if (inner := getattr(model, name)) is not None:
            settings[name] = max(1, round(inner * share))
    if model.value_embeddings:
        settings["value_embeddings"] = min(model.value_embeddings, layers // 2)
    if model.window_full_every:
        settings["window_full_every"] = min(model.window_full_every, layers)
    settings = {f"model.{name}": value for name, value in settings.items()}
    try:
        sized = with_overrides(recipe, settings)
    except RecipeError:
        return
    size = model_size(sized.model, known_vocabulary(sized)[0])
    flops = size.flops_per_token(sized.block_length())
    yield LadderSize(layers, width, size.non_embedding, flops, 0, 0, settings)


def _trained_on(recipe: Recipe, size: LadderSize, tokens_per_parameter: float | None) -> LadderSize:
    """The size with its length."""
    timed: dict[str, Any] = {}
    if tokens_per_parameter is not None:
        steps, tokens = _length(recipe)
        share = tokens_per_parameter * size.parameters / tokens
        in_steps = recipe.train.steps is not None
        path, own = ("train.steps", steps) if in_steps else ("train.tokens", tokens)
        timed = {path: max(1, round(own * share))} | moved_in_time(recipe, share)
    steps, tokens = _length(with_overrides(recipe, timed))
    return replace(size, steps=steps, tokens=tokens, settings=size.settings | timed)


def moved_in_time(recipe: Recipe, share: float) -> dict[str, Any]:
    """What the recipe times in steps or draws, at `share` of its time, by dotted path."""
    schedule = recipe.optim.schedule
    single = {
        "optim.schedule.warmup_steps": schedule.warmup_steps,
        "optim.schedule.decay_steps": schedule.decay_steps,
        "optim.muon.momentum_warmup_steps": recipe.optim.muon.momentum_warmup_steps,
    }
    moved: dict[str, Any] = {p: max(1, round(n * share)) for p, n in single.items() if n}
    lists = {
        "model.window_stages": (recipe.model.window_stages, "from_step", 0),
        "model.ahead_stages": (recipe.model.ahead_stages, "from_step", 0),
        "batch.stages": (recipe.batch.stages, "from_step", 1),
        "data.stages": (recipe.data.stages, "from_draw", 1),
    }
    for path, (stages, start, least) in lists.items():
        if stages:
            tables = [stage.model_dump() for stage in stages]
            moved[path] = [t | {start: max(least, round(t[start] * share))} for t in tables]
    return moved


def _length(recipe: Recipe) -> tuple[int, int]:
    """Steps of a run, and their target tokens."""
    steps, stages = recipe.total_steps(), recipe.batch_stages()
    assert steps is not None
    ends = [*(stage.from_step for stage in stages[1:]), steps]
    return steps, sum(
        stage.sequences * stage.sequence_length * max(0, min(end, steps) - stage.from_step)
        for stage, end in zip(stages, ends, strict=True)
    )


def ideas_of(recipe: Recipe, typed: tuple[str, ...]) -> tuple[Idea, ...]:
    """The ideas that were typed, or every switch of the recipe that differs from `PLAIN`.

    Typed is `NAME=path=value,path=value`, a path of `PLAIN` alone, or `none`. UsageError if it is
    none of these, or the recipe does not have that idea.
    """
    settings = recipe.model_dump(mode="json")
    own = {path: plain for path, plain in PLAIN.items() if value_at(settings, path) != plain}
    if recipe.model.activation == "gelu_tanh":  # GPT-2's own, and no other idea than GELU
        del own["model.activation"]
    if not typed:
        return tuple(_plain(path) for path in own if _possible(recipe, path))
    found = [_typed(text, own) for text in typed if text != NO_IDEAS]
    if len({idea.name for idea in found}) < len(found):
        raise UsageError("--idea: two have the same name", "give each a name of its own")
    return tuple(found)


def _typed(text: str, own: dict[str, object]) -> Idea:
    name, _, settings = text.partition("=")
    if settings:
        without = tuple(re.split(r",(?=[\w.]+=)", settings))
        if all("=" in setting for setting in without):
            return Idea(name.strip(), without)
    elif name in own:
        return _plain(name)
    raise UsageError(
        f"--idea {text}: neither NAME=path=value,… nor a switch of the recipe that is on",
        f"its switches: {', '.join(own) or 'none'}",
    )


def _plain(path: str) -> Idea:
    return Idea(path.removeprefix("model."), (f"{path}={as_toml(PLAIN[path])}",))


def _possible(recipe: Recipe, path: str) -> bool:
    """Whether the recipe can be without a switch: another one may need it."""
    try:
        with_overrides(recipe, {path: PLAIN[path]})
    except RecipeError:
        return False
    return True
