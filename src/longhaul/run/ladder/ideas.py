"""The ideas of a recipe that a scaling ladder switches off one at a time."""

import re

from longhaul.config.load import as_toml, value_at, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.errors import RecipeError, UsageError
from longhaul.run.ladder.plan import Idea

PLAIN: dict[str, object] = {
    "model.positions": "learned", "model.norm": "layernorm", "model.embedding_norm": False,
    "model.attention_out_norm": False, "model.mlp_inner_norm": False, "model.qk_norm": False,
    "model.attention_head_scale": False, "model.document_mask": False,
    "model.activation": "gelu", "model.bigram_rows": 0, "model.logit_softcap": 0.0,
    "model.z_loss": 0.0, "model.value_residual": False, "model.value_embeddings": 0,
    "model.input_mix": False, "model.unet_skips": False, "model.zero_projections": False,
    "model.zero_head": False,
}  # fmt: skip
"""What GPT-2 does in place of each switch. What changes the scale of rates, such as the optimizer,
is not here: without a rate of its own it would be compared at the wrong one."""
NO_IDEAS = "none"


def ideas_of(recipe: Recipe, typed: tuple[str, ...]) -> tuple[Idea, ...]:
    """The ideas that were typed, or every switch of the recipe that differs from `PLAIN`.

    Typed is `NAME=path=value,path=value`, a path of `PLAIN` alone, or `none`.

    Raises:
        UsageError: it is none of these, or the recipe does not have that idea.
    """
    settings = recipe.model_dump(mode="json")
    own = {path: plain for path, plain in PLAIN.items() if value_at(settings, path) != plain}
    if recipe.model.activation == "gelu_tanh":  # GPT-2's own, and no other idea than GELU
        del own["model.activation"]
    if not typed:
        return tuple(idea for path in own if _possible(recipe, idea := _plain(path)))
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


def _possible(recipe: Recipe, idea: Idea) -> bool:
    """Whether the recipe can be without it: another switch may need it."""
    path = idea.without[0].partition("=")[0]
    try:
        with_overrides(recipe, {path: PLAIN[path]})
    except RecipeError:
        return False
    return True
