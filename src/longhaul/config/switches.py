"""What settings mean, from the code that declares them: the model's switches as a table, and the
recipe's JSON schema. Reading that code at each start would take 40 ms, so nobody else does.
"""

import ast
import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.model import ModelSection
from longhaul.config.recipe import Recipe
from longhaul.config.section import Section


def meanings(section: type[Section]) -> dict[str, str]:
    """Name of each setting → the text below its declaration, where there is one."""
    found: dict[str, str] = {}
    for owner in reversed([kind for kind in section.__mro__ if issubclass(kind, Section)]):
        (declared,) = ast.parse(inspect.getsource(owner)).body
        assert isinstance(declared, ast.ClassDef)
        for setting, text in pairwise(declared.body):
            match setting, text:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(said))):
                    found[name] = inspect.cleandoc(said)
    return found


def json_schema() -> dict[str, Any]:
    """JSON schema of a recipe, for editors."""
    schema = Recipe.model_json_schema()
    described = {kind.__name__: kind for kind in _kinds(Section)}
    tables = schema["$defs"] | {Recipe.__name__: schema}
    for name, table in tables.items():
        if kind := described.get(name):
            for setting, meaning in meanings(kind).items():
                alias = kind.model_fields[setting].alias or setting
                table["properties"][alias]["description"] = meaning
    return schema


def _kinds(section: type[Section]) -> Iterator[type[Section]]:
    for kind in section.__subclasses__():
        yield kind
        yield from _kinds(kind)


def as_markdown() -> str:
    """The table for `docs/model.md`: every setting of the model, in the order in which it is
    declared, with the shipped recipes that set it to something else than its default.
    """
    models = {name: load_recipe(name).recipe.model for name in shipped_recipes()}
    lines = [
        "| `model.…` | default | what it changes, and its source | recipes that change it |",
        "|---|---|---|---|",
    ]
    means = meanings(ModelSection)
    for name, field in ModelSection.model_fields.items():
        shown, recipes = "must be given", ""
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
            shown = "`absent`" if default is None else f"`{json.dumps(default)}`"
            changing = [r for r, model in models.items() if getattr(model, name) != default]
            recipes = ", ".join(f"`{recipe}`" for recipe in changing)
        meaning = " ".join(means.get(name, "").split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {shown} | {meaning} | {recipes} |")
    return "\n".join(lines)
