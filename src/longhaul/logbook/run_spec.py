"""What a run was asked to do, kept in its folder so that a worker needs nothing else."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from longhaul.config.data import SourceSection
from longhaul.config.load import (
    Resolved,
    load_on_top,
    load_recipe,
    parse_override,
    recipe_file,
    recipe_from_values,
    sealed_options,
)
from longhaul.config.recipe import Recipe, change_of, source_name
from longhaul.core.addresses import holds_a_secret, sealed, sealed_values
from longhaul.core.errors import RecipeError, UsageError
from longhaul.core.files import write_bytes, write_json
from longhaul.core.machine import differences
from longhaul.core.strict import DamagedFile, parse_toml, read_object, read_toml
from longhaul.logbook.folder import RunFolder

_AGAIN = "start the run again with `longhaul train RECIPE` and the options it had"
_PATHS = ("checkpoint.remote", "init.from", "supervise.node_ledger", "supervise.signatures")
"""Settings that are files or folders, which every start must find again."""


@dataclass(frozen=True)
class RunSpec:
    """A recipe with every option of every start so far."""

    recipe: str
    """A shipped recipe's name, or the path of a file."""
    options: tuple[str, ...]
    """`path=value`, in the order given; later ones win."""
    data: str | None
    prepared: str
    """Folder of prepared text."""
    values: Mapping[str, Any]
    """The merged tables; paths in them are absolute."""
    base: str
    """Folder of the first start: relative paths in the recipe's file mean what they meant there."""

    file: str = field(default="", compare=False)
    """Where it was read; for messages."""

    def settings(self) -> Recipe:
        """The recipe, checked."""
        return recipe_from_values(self.values, self.file)


def resolve_spec(
    recipe: str,
    options: tuple[str, ...],
    data: str | None,
    prepared: Path,
    base: Path | None = None,
) -> RunSpec:
    """Resolve what somebody asks for; see the fields of `RunSpec`. Without `base` this is the first
    start, and here. RecipeError with every problem.
    """
    path = Path(recipe)
    options, data = sealed_options(options, _absolute(data))
    options, base = _anchored_options(options), base or Path.cwd()
    resolved: Resolved = load_recipe(recipe, options, data)
    name = str(path.resolve()) if path.suffix == ".toml" else recipe
    values = _anchored(resolved.values, base)
    return RunSpec(name, options, data, str(prepared.resolve()), values, str(base))


def spec_of_restart(known: RunSpec, new: RunSpec) -> RunSpec:
    """The same run's, earlier options and new ones; RecipeError if it would be another run."""
    typed, data = sealed_options(new.options, new.data or known.data)
    options = tuple(o for o in known.options if o not in typed) + typed
    merged = resolve_spec(new.recipe, options, data, Path(new.prepared), Path(known.base))
    if "cycle" in (order := known.values.get("order", {})):  # it may be the default of its time
        values = {**merged.values, "order": order | merged.values.get("order", {})}
        merged = replace(merged, values=values)
    refuse_another_run(known.settings(), merged.settings())
    return merged


def spec_with_more(known: RunSpec, options: tuple[str, ...], data: str | None) -> RunSpec:
    """That of a run named itself, with more options; RecipeError if it would be another run.

    Its recipe's file, which may have moved or changed, is not read again.
    """
    options, data = sealed_options(options, _absolute(data))
    settings, options = known.settings(), _anchored_options(options)
    resolved = load_on_top(known.values, options, data, settings.name)
    refuse_another_run(settings, resolved.recipe)
    kept = tuple(option for option in known.options if option not in options)
    return replace(known, options=kept + options, data=data or known.data, values=resolved.values)


def changed_settings(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """Dotted path → (before, after) of every setting that differs."""
    found = differences(before.model_dump(mode="json"), after.model_dump(mode="json"))
    return {path: pair for path, pair in found.items() if path not in ("name", "summary")}


def write_run_spec(folder: RunFolder, spec: RunSpec) -> None:
    """Keep it in the run's folder."""
    # Moved or broken since, the one kept at the first start stays.
    with suppress(RecipeError, OSError, DamagedFile):
        write_bytes(folder.recipe, _as_given(recipe_file(spec.recipe)))
    body = {item.name: getattr(spec, item.name) for item in fields(spec) if item.name != "file"}
    write_json(folder.run_spec, body | {"defaults": 3})


def read_run_spec(folder: RunFolder) -> RunSpec:
    """What the run was last asked to do; UsageError if the file is gone or damaged."""
    try:
        body = read_object(folder.run_spec)
        base = body.get("base") or str(Path.cwd())  # older runs do not say it
        values = body["values"]
        if not body.get("defaults"):  # before `precision.compute` was `auto`, none meant float32
            values = {**values, "precision": {"compute": "float32"} | values.get("precision", {})}
        if body.get("defaults", 1) < 3:  # before `order.cycle` was `auto`, none meant 4,096
            values = {**values, "order": {"cycle": 4096} | values.get("order", {})}
        # Older runs also keep addresses as they were given.
        options, data = sealed_options(body["options"], body["data"])
        facts = data, body["prepared"], sealed_values(values), base
        return RunSpec(body["recipe"], options, *facts, file=str(folder.run_spec))
    except DamagedFile as damage:
        raise UsageError(damage.message, _AGAIN) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{folder.run_spec}: cannot be read ({error})", _AGAIN) from error


def has_run_spec(folder: RunFolder) -> bool:
    """The run was set up completely."""
    return folder.run_spec.is_file()


def _as_given(recipe: Path) -> bytes:
    """A recipe's file without the secrets of addresses in it, which this process knows by now."""
    text, values = read_toml(recipe)
    # A run's folder from elsewhere names any file of ours as its recipe: only a recipe is copied.
    if strange := set(values) - set(Recipe.model_fields) - {"extends"}:
        raise RecipeError(f"{recipe}: {min(strange)} is no table of a recipe")
    if "://" not in text:
        return text.encode()
    text = sealed(text)
    try:
        values = parse_toml(text, str(recipe))
    except DamagedFile:
        values = {"": text}
    if sealed_values(values) != values or holds_a_secret(text):
        # It is written in a way that only a TOML parser reads.
        text = "# Not kept as given, as it holds a password or a signature: see asked.json.\n"
    return text.encode()


def _absolute(data: str | None) -> str | None:
    """A local path as it is found from anywhere; addresses and built-in sources as they are."""
    if data is None or "://" in data or not Path(data).exists():
        return data
    return str(Path(data).resolve())


def _anchored_options(options: tuple[str, ...]) -> tuple[str, ...]:
    """Options that name files by what they mean here, and not where the run is started next."""
    found = []
    for option in options:
        path, _, _ = option.partition("=")
        if path.strip() in _PATHS:
            path, value = parse_override(option)
            option = f"{path}={json.dumps(_from(value, Path.cwd()), ensure_ascii=False)}"
        found.append(option)
    return tuple(found)


def _anchored(values: Mapping[str, Any], base: Path) -> dict[str, Any]:
    tables = dict(values)
    for path in _PATHS:
        section, key = path.split(".")
        if key in (table := tables.get(section, {})):
            tables[section] = {**table, key: _from(table[key], base)}
    return tables


def _from(value: Any, base: Path) -> Any:
    if isinstance(value, list):
        return [_from(item, base) for item in value]
    if not isinstance(value, str) or not value or "://" in value:
        return value
    return str((base / Path(value).expanduser()).resolve())


def refuse_another_run(before: Recipe, after: Recipe) -> None:
    """Raise a RecipeError that names changed settings which decide what a run is, if any."""
    refused = [
        f"  {path}: {_shown(old)} → {_shown(new)}"
        for path, (old, new) in changed_settings(before, after).items()
        if change_of(path) == "never"
    ]
    refused += [f"  {line}" for line in _other_text(before, after)]
    if refused:
        raise RecipeError(
            f"run {after.name} was begun with other settings that decide what it is:\n"
            + "\n".join(refused),
            "put them back, go on with what the run began with (`longhaul train` and its folder or "
            "name), or start another run beside it with --new",
        )


def _other_text(before: Recipe, after: Recipe) -> Iterator[str]:
    """Sources that are not what they were; weights may change, and others come and go."""
    known = {source_name(s.name, s.path): s for s in before.data.sources}
    asked = {source_name(s.name, s.path): s for s in after.data.sources}
    if not known.keys() & asked.keys():
        yield f"data.sources: {', '.join(known)} → {', '.join(asked)}"
    for name in known.keys() & asked.keys():
        was, now = (_content(sources[name]) for sources in (known, asked))
        for field_name, value in was.items():
            if now[field_name] != value:
                yield f"data.sources ({name}): {_shown(value)} → {_shown(now[field_name])}"


def _content(source: SourceSection) -> dict[str, Any]:
    return source.model_dump(mode="json", exclude={"name", "weight", "max_epochs"})


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
