"""The model's switches as a table, made from the code that declares them."""

import json

from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.model import ModelSection


def as_markdown() -> str:
    """The table for `docs/model.md`: every setting of the model, in the order in which it is
    declared, with the shipped recipes that set it to something else than its default.
    """
    models = {name: load_recipe(name).recipe.model for name in shipped_recipes()}
    lines = [
        "| `model.…` | default | what it changes, and its source | recipes that change it |",
        "|---|---|---|---|",
    ]
    for name, field in ModelSection.model_fields.items():
        shown, recipes = "must be given", ""
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
            shown = "`absent`" if default is None else f"`{json.dumps(default)}`"
            changing = [r for r, model in models.items() if getattr(model, name) != default]
            recipes = ", ".join(f"`{recipe}`" for recipe in changing)
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {shown} | {meaning} | {recipes} |")
    return "\n".join(lines)
