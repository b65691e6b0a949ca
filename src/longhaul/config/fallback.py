"""Whether the recipe's plans B could be forked to, found before any device is touched.

Enters: a recipe whose single settings are valid. Leaves: problems, as `combinations.py` gives
them. Never knows: when a fallback is taken.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from longhaul.config.model_combinations import Combination
from longhaul.config.paths import change_of
from longhaul.config.problems import from_pydantic, unknown_setting
from longhaul.config.recipe import Recipe


def fallback_problems(recipe: Recipe) -> Iterator[Combination]:
    """Settings that do not exist, that a begun run cannot change, or that no recipe may have."""
    names = [entry.name for entry in recipe.fallback]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield ("fallback",), f"two entries are called {name}; give each a name of its own"
    for number, entry in enumerate(recipe.fallback):
        where = f"fallback.{number}.set"
        known = True
        for path in settings_in(entry.set):
            change = change_of(path)
            known = known and change is not None
            if change is None:
                yield (f"{where}.{path}",), unknown_setting(path).text
            elif change == "never":
                yield (
                    (f"{where}.{path}",),
                    "makes another model or another order of data, which no weights go on with",
                )
        if known:
            yield from _wrong_values(recipe, where, entry.set)


def settings_in(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted path → value of settings given as tables."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= settings_in(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _wrong_values(recipe: Recipe, where: str, values: Mapping[str, Any]) -> Iterator[Combination]:
    merged = recipe.model_dump(mode="json")
    _merge(merged, values)
    try:
        # As JSON, in which lists stand for tuples, as they do in a recipe's file.
        Recipe.model_validate_json(json.dumps(merged))
    except ValidationError as error:
        for detail in error.errors():
            problem = from_pydantic(detail, {})
            yield (f"{where}.{problem.path}",), problem.text


def _merge(onto: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(onto.get(key), dict):
            _merge(onto[key], value)
        else:
            onto[key] = value
