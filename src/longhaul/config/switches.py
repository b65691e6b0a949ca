"""The model's switches as a table, made from the code that declares them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.model import ModelSection


@dataclass(frozen=True, slots=True)
class Switch:
    """One setting of the model."""

    name: str
    default: str
    """As TOML; empty if it must be given, `absent` if nothing stands for it."""
    meaning: str
    """What it changes, with its source."""
    recipes: tuple[str, ...]
    """Shipped recipes that set it to something else than its default."""


def switches() -> Iterator[Switch]:
    """Every setting of the model, in the order in which it is declared."""
    models = {name: load_recipe(name).recipe.model for name in shipped_recipes()}
    for name, field in ModelSection.model_fields.items():
        yield Switch(
            name=name,
            default=_default(field),
            meaning=" ".join((field.description or "").split()),
            recipes=()
            if field.is_required()
            else tuple(
                recipe
                for recipe, model in models.items()
                if getattr(model, name) != field.get_default(call_default_factory=True)
            ),
        )


def as_markdown() -> str:
    """The table for `docs/model.md`."""
    lines = [
        "| `model.…` | default | what it changes, and its source | recipes that change it |",
        "|---|---|---|---|",
    ]
    for switch in switches():
        cells = (
            f"`{switch.name}`",
            f"`{switch.default}`" if switch.default else "must be given",
            switch.meaning.replace("|", "\\|"),
            ", ".join(f"`{recipe}`" for recipe in switch.recipes),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value: Any = field.get_default(call_default_factory=True)
    return "absent" if value is None else json.dumps(value)
