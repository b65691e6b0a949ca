"""From a recipe's name or file to a checked, frozen `Recipe`."""

import copy
import difflib
import importlib.resources
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from longhaul.config.combinations import combination_problems
from longhaul.config.problems import (
    Problem,
    from_pydantic,
    lines_of_settings,
    origin_of,
    raise_problems,
    unknown_setting,
)
from longhaul.config.recipe import Recipe, change_of
from longhaul.core.addresses import scrubbed, sealed, sealed_values
from longhaul.core.errors import RecipeError
from longhaul.core.strict import DamagedFile, parse_toml, read_toml


@dataclass(frozen=True)
class Resolved:
    """A checked recipe and the origin of each value that is not a default."""

    recipe: Recipe
    values: Mapping[str, Any]
    """The merged tables, as they would stand in one TOML file."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Dotted path → `file:line` or the option that set it."""


@dataclass
class _Layers:
    """Tables merged so far; later layers win, tables merge, lists are replaced."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def merge(self, values: Mapping[str, Any], lines: Mapping[str, int], file: str) -> None:
        self._merge_into(self.values, values, "")
        for path, line in lines.items():
            self.origins[path] = f"{file}:{line}"

    def _merge_into(self, onto: dict[str, Any], values: Mapping[str, Any], prefix: str) -> None:
        for key, value in values.items():
            path = f"{prefix}{key}"
            if isinstance(value, dict) and isinstance(onto.get(key), dict):
                self._merge_into(onto[key], value, f"{path}.")
                continue
            for stale in [p for p in self.origins if p == path or p.startswith(f"{path}.")]:
                del self.origins[stale]
            onto[key] = copy.deepcopy(value)

    def set(self, path: str, value: Any, origin: str) -> None:
        if not _put(self.values, path, value):
            raise_problems([unknown_setting(path, origin)], "override")
        for stale in [p for p in self.origins if p.startswith(f"{path}.")]:
            del self.origins[stale]
        self.origins[path] = origin


def shipped_recipes() -> dict[str, Path]:
    """Name → file of the recipes that come with the package."""
    folder = Path(str(importlib.resources.files("longhaul") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_recipe(name: str, overrides: Sequence[str] = (), data: str | None = None) -> Resolved:
    """Resolve a shipped recipe's name, or the path of a TOML file.

    An override is `dotted.path=value`, as given to `--set`; the value is TOML, or else a text.
    `data` replaces every source by this one file, folder or address. RecipeError has every problem
    found, not only the first.
    """
    layers = _Layers()
    _read_with_parents(recipe_file(name), layers, ())
    _set_options(layers, overrides, data)
    return resolve(layers.values, layers.origins, name)


def load_on_top(
    values: Mapping[str, Any], overrides: Sequence[str], data: str | None, name: str
) -> Resolved:
    """Resolve tables that were merged before, with more options on top, as `load_recipe` does."""
    layers = _Layers(copy.deepcopy(dict(values)))
    _set_options(layers, overrides, data)
    return resolve(layers.values, layers.origins, name)


def resolve(values: Mapping[str, Any], origins: Mapping[str, str], name: str) -> Resolved:
    """Check merged tables and freeze them; every problem is raised at once."""
    # No secret of an address enters a recipe.
    values = sealed_values(values)
    recipe, problems = _validate(values, origins)
    raise_problems(problems, name)
    assert recipe is not None
    return Resolved(recipe, values, dict(origins))


def parse_override(text: str) -> tuple[str, Any]:
    """`optim.lr=3e-4` → ("optim.lr", 0.0003); a value that is no TOML is taken as text."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise RecipeError(
            f"--set {scrubbed(text)}: not of the form path=value",
            "write it like --set optim.lr=3e-4",
        )
    try:
        return path, parse_toml(f"value = {value.strip()}", path)["value"]
    except DamagedFile:
        return path, value.strip()


def sealed_options(
    overrides: Sequence[str], data: str | None
) -> tuple[tuple[str, ...], str | None]:
    """What was typed, without the secrets of addresses in it."""
    found = []
    for override in overrides:
        if "://" in override:
            path, value = parse_override(override)
            if (hidden := sealed_values(value)) != value:
                override = f"{path}={as_toml(hidden)}"
        found.append(override)
    return tuple(found), None if data is None else sealed(data)


def as_toml(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{as_toml(k)} = {as_toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    # JSON would write a character beyond U+FFFF as two escapes, which TOML does not know.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)


def with_overrides(
    recipe: Recipe, overrides: Mapping[str, Any], origins: Mapping[str, str] | None = None
) -> Recipe:
    """Effective settings: the recipe with the ledger's overrides (dotted path → value) on top.

    `origins` says where somebody has just written one, for a RecipeError's message.
    """
    if not overrides:
        return recipe
    layers = _Layers(recipe.model_dump(mode="json", exclude_unset=True))
    for path, value in overrides.items():
        origin = origin_of(path, origins or {}) or "ledger"
        if change_of(path) is None:
            raise_problems([unknown_setting(path, origin)], recipe.name)
        layers.set(path, value, origin)
    return resolve(layers.values, layers.origins | dict(origins or {}), recipe.name).recipe


def recipe_from_values(values: Mapping[str, Any], file: str = "") -> Recipe:
    """A recipe from its own `model_dump`, such as a segment's settings; `file` is for messages."""
    return resolve(values, {}, file or str(values.get("name", "?"))).recipe


def recipe_file(name: str) -> Path:
    """The file of a shipped recipe's name, or the path itself; RecipeError gives the nearest."""
    path = Path(name)
    shipped = shipped_recipes()
    if path.suffix == ".toml" or "/" in name:
        if path.is_file():
            return path
        raise RecipeError(
            f"recipe {name}: no such file", "`longhaul recipes` lists those that are shipped"
        )
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(name, shipped, n=1)
    raise RecipeError(
        f"recipe {name}: not among those shipped ({', '.join(shipped)})"
        + (f"; did you mean {near[0]}?" if near else ""),
        "name one of them, or the path of your own .toml file",
    )


def _read_with_parents(path: Path, layers: _Layers, children: tuple[Path, ...]) -> None:
    if path.resolve() in children or len(children) >= 16:
        chain = " → ".join(p.name for p in (*children, path))
        raise RecipeError(f"extends: {chain} goes round in a circle", "remove one `extends`")
    try:
        text, values = read_toml(path)
    except DamagedFile as error:
        raise RecipeError(error.message, "mend the file, or name another recipe") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    lines = lines_of_settings(text)
    parent = values.pop("extends", None)
    if parent is not None:
        if not isinstance(parent, str):
            raise RecipeError(
                f"extends: {parent!r} is not a text in quotes ({path.name}:{lines['extends']})"
            )
        beside = path.parent / parent
        found = beside if beside.is_file() else recipe_file(parent)
        _read_with_parents(found, layers, (*children, path.resolve()))
    values.setdefault("name", path.stem)
    lines.pop("extends", None)
    layers.merge(values, lines, path.name)


def _set_options(layers: _Layers, overrides: Sequence[str], data: str | None) -> None:
    overrides, data = sealed_options(overrides, data)
    if data is not None:
        layers.set("data.sources", [{"path": data}], f"--data {data}")
    for override in overrides:
        path, value = parse_override(override)
        layers.set(path, value, f"--set {override}")


def _validate(
    values: Mapping[str, Any], origins: Mapping[str, str]
) -> tuple[Recipe | None, list[Problem]]:
    """Validate, and where single settings are wrong, go on without them to find the rest."""
    problems: list[Problem] = []
    remaining: Any = copy.deepcopy(values)
    blamed: set[str] = set()
    for _ in range(4):
        try:
            recipe = Recipe.model_validate(tupled(remaining))
        except ValidationError as error:
            details = error.errors()
            wrong = [".".join(map(str, detail["loc"])) for detail in details]
            problems += [
                from_pydantic(detail, origins)
                for path, detail in zip(wrong, details, strict=True)
                if path not in blamed  # a wrong value that was taken out is missing now
            ]
            blamed.update(wrong)
            removed = [_remove(remaining, path) for path in wrong]
            if not any(removed):
                # Only required settings are missing: stand-ins let the combinations be checked.
                removed = [_stand_in(remaining, path) for path in wrong]
            if not any(removed):
                return None, problems
            continue
        problems += _fallback_problems(values, recipe)
        for involved, text in combination_problems(recipe):
            if not blamed.intersection(involved):
                where = next((p for p in involved if p in origins), involved[0])
                problems.append(Problem(involved[0], text, origin_of(where, origins)))
        return recipe, problems
    return None, problems


def _fallback_problems(values: Mapping[str, Any], recipe: Recipe) -> Iterator[Problem]:
    """A plan B that could not be put in force is found before it is needed."""
    names = [entry.name for entry in recipe.fallback]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("fallback", f"two entries are called {name}; give each a name of its own")
    for number, entry in enumerate(recipe.fallback):
        layers = _Layers(copy.deepcopy({k: v for k, v in values.items() if k != "fallback"}))
        for path, value in leaves(entry.set):
            if (change := change_of(path)) != "live":
                why = "unknown setting" if change is None else "cannot change in a live run"
                yield Problem(f"fallback.{number}.set.{path}", why)
            layers.set(path, value, "fallback")
        for problem in _validate(layers.values, {})[1]:
            yield Problem(f"fallback.{number}.set.{problem.path}", problem.text)


_STAND_INS: dict[str, Any] = {
    "model.layers": 1, "model.heads": 1, "model.width": 2, "model.context": 1,
    "batch.sequences": 1, "optim.lr": 1.0, "name": "unnamed",
    "data.sources": [{"path": "synthetic"}], "data": {"sources": [{"path": "synthetic"}]},
    "model": {"layers": 1, "heads": 1, "width": 2, "context": 1}, "batch": {"sequences": 1},
    "optim": {"lr": 1.0}, "train": {"steps": 1},
}  # fmt: skip


def _stand_in(values: dict[str, Any], path: str) -> bool:
    return path in _STAND_INS and _put(values, path, copy.deepcopy(_STAND_INS[path]))


def value_at(values: Any, path: str) -> Any:
    """What lies at a dotted path of settings in their JSON form; None if nothing does."""
    return _at(values, path.split("."))


def with_values(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with the values at dotted paths put in; the arguments stay as they are."""
    copied = copy.deepcopy(dict(settings))
    for path, value in values.items():
        _put(copied, path, value)
    return copied


def _put(values: dict[str, Any], path: str, value: Any) -> bool:
    *parents, last = path.split(".")
    table = _at(values, parents, create=True)
    if isinstance(table, list) and last.isdigit() and int(last) < len(table):
        table[int(last)] = value
    elif isinstance(table, dict):
        table[last] = value
    else:
        return False
    return True


def _remove(values: dict[str, Any], path: str) -> bool:
    *parents, last = path.split(".")
    table = _at(values, parents)
    if isinstance(table, list) and last.isdigit() and int(last) < len(table):
        del table[int(last)]
    elif isinstance(table, dict) and last in table:
        del table[last]
    else:
        return False
    return True


def _at(table: Any, path: Sequence[str], *, create: bool = False) -> Any:
    for part in path:
        if isinstance(table, list) and part.isdigit() and int(part) < len(table):
            table = table[int(part)]
        elif isinstance(table, dict) and (create or part in table):
            if create and not isinstance(table.get(part), dict | list):
                table[part] = {}
            table = table[part]
        else:
            return None
    return table


def tupled(value: Any) -> Any:
    """The value with tuples for lists: strict pydantic wants them, TOML has only lists."""
    if isinstance(value, Mapping):
        return {key: tupled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(tupled(item) for item in value)
    return value


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every setting in nested tables; lists of tables by position."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}.")
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            for number, item in enumerate(value):
                yield from leaves(item, f"{path}.{number}.")
        else:
            yield path, value
