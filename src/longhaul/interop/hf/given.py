"""The weights that a run begins with, where its recipe names some (`init.from`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from longhaul.config.model import ModelSection
from longhaul.config.model_combinations import model_problems
from longhaul.config.recipe import Recipe
from longhaul.config.size import model_size
from longhaul.core.errors import DataError, NeedsPerson, RecipeError
from longhaul.core.files import sha256_of
from longhaul.interop.hf.families import family_of
from longhaul.interop.hf.family import NOT_AFTERWARDS, Family
from longhaul.interop.hf.published import NAME, Published, read_config
from longhaul.interop.hf.weights import PublishedWeights, compare_shapes

if TYPE_CHECKING:
    from longhaul.train.state import ModelState

_ODD = "download the folder again"
_MOST_CONTEXT = 1 << 27
"""Thirteen times the longest that was published: rotary angles are computed for every position."""


def refuse_unfit(recipe: Recipe) -> None:
    """RecipeError or DataError if `init.from` cannot be what the recipe's model begins with, as far
    as its `config.json` tells. Imports no torch.
    """
    if recipe.init.from_ is not None:
        _family(recipe, Path(recipe.init.from_))


def _family(recipe: Recipe, folder: Path) -> Family:
    if "://" in str(recipe.init.from_):
        raise RecipeError(
            f"init.from: {recipe.init.from_} is an address",
            "download the folder, with `hf download` for one of the Hugging Face Hub",
        )
    model_type, theirs = read_config(folder)
    family = family_of(model_type, theirs.file)
    if odd := family.refused(recipe.model):
        raise RecipeError(
            f"init.from: weights of family {model_type} cannot be those of {', '.join(odd)}",
            "take the table [model] that `longhaul import` writes, or begin without init.from",
        )
    differ = [
        f"model.{name}: {getattr(recipe.model, name)} here, {value} there"
        for name, value in model_of(family, theirs).items()
        if not _same(recipe.model, name, value)
    ]
    if differ:
        raise RecipeError(
            f"init.from: the model of {folder} is another one: {'; '.join(differ)}",
            "take the table [model] that `longhaul import` writes, or begin without init.from",
        )
    return family


def model_of(family: Family, theirs: Published) -> dict[str, Any]:
    """Our settings of a published model, checked alone and together; DataError if they are none."""
    assert family.settings is not None
    values = family.settings(theirs)
    try:
        model = ModelSection.model_validate(values)
    except ValidationError as error:  # settings were read with their types before
        odd = error.errors()[0]
        said = f"model.{'.'.join(map(str, odd['loc']))}: {odd['msg']}"
        raise DataError(f"{theirs.file}: no model is like that ({said})", _ODD) from None
    if model.context > _MOST_CONTEXT:
        raise DataError(f"{theirs.file}: a context of {model.context:,} is no model's", _ODD)
    for paths, why in model_problems(model):
        raise DataError(f"{theirs.file}: no model is like that ({paths[0]}: {why})", _ODD)
    return values


def refuse_unfit_shapes(
    weights: PublishedWeights, family: Family, model: ModelSection, vocab_size: int, folder: Path
) -> None:
    """DataError unless every weight of the model is among these, in its shape. Reads none."""
    from longhaul.model.initialise import allocate

    # Before anything is allocated, however empty: what a stranger's file says decides how much.
    fits = max(model.layers, vocab_size) <= weights.size_bytes  # as layers are added singly
    if not fits or model_size(model, vocab_size).total > weights.size_bytes:
        raise DataError(f"{folder}: holds too few bytes for the model of its {NAME}", _ODD)
    empty = allocate(model, vocab_size, "meta", end_of_text=0)  # which one has no shape
    wanted = {name: tuple(weight.shape) for name, weight in empty.named_parameters()}
    places = family.layout(model).places
    compare_shapes({name: places[name].shape(weights.shape) for name in wanted}, wanted, folder)


def _same(model: ModelSection, name: str, value: object) -> bool:
    of_training = name in NOT_AFTERWARDS and not name.startswith("rotary_")
    if of_training or (name == "context" and model.positions == "rotary"):
        return True  # no weight knows it
    narrow = None if model.table_width == model.width else model.table_width
    alike = {
        "kv_heads": model.key_heads, "mlp_width": model.inner_width, "embedding_width": narrow,
        "rotary_fast_turns": model.fast_turns, "rotary_attention_factor": model.attention_factor,
    }  # fmt: skip
    own = getattr(model, name)
    return bool(value in (own, alike.get(name, own)))


def fill(state: ModelState, recipe: Recipe) -> None:
    """Fill the model, or this rank's parts of it, with the weights that the recipe begins with; the
    largest of them is what memory must hold beside it. DataError if they are damaged or do not fit,
    and then nothing was filled.
    """
    import torch

    from longhaul.checkpoint.capture import local_of, pieces_here, whole_shape

    folder = Path(str(recipe.init.from_))
    family = _family(recipe, folder)
    weights = PublishedWeights(folder, family.prefix)
    places = family.layout(recipe.model).places
    tensors, pieces = state.tensors(), state.pieces()
    wanted = {name: whole_shape(own, pieces.get(name)) for name, own in tensors.items()}
    found = {name: places[name].shape(weights.shape) for name in wanted}
    compare_shapes(found, wanted, folder)
    with torch.no_grad():
        for name, tensor in tensors.items():
            whole, local = places[name].to_ours(weights.read), local_of(tensor)
            for piece in pieces_here(local, pieces.get(name)):
                local[piece.here] = whole[piece.there].to(local.device, local.dtype)


def identity_of(recipe: Recipe) -> dict[str, str]:
    """What the weights are, for the segment that begins with them: folder, family, hash over all
    their files; empty where the recipe names none.
    """
    if recipe.init.from_ is None:
        return {}
    folder = Path(recipe.init.from_)
    digest = hashlib.sha256()
    for path in (folder / NAME, *PublishedWeights(folder).files):
        digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    family, _ = read_config(folder)
    return {"folder": str(folder), "family": family, "sha256": digest.hexdigest()}


def refuse_others(now: Mapping[str, str], first: Mapping[str, str]) -> None:
    """NeedsPerson if a run that begins once more would begin with other weights than at first."""
    if first and first.get("sha256") != now.get("sha256"):
        raise NeedsPerson(
            f"init.from: {now.get('folder')} holds other weights than the run began with at first",
            "put them back, or start another run with --new",
        )
