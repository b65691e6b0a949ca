"""Settings by dotted path.

Enters: a path such as `optim.lr`. Leaves: whether it exists and when it may change.
Never knows: values.
"""

from collections.abc import Iterator

from longhaul.config.recipe import Recipe
from longhaul.config.section import Change, Section


def change_of(path: str) -> Change | None:
    """When the setting at a dotted path may change in a started run; None if there is none."""
    model: type[Section] = Recipe
    *parents, last = path.split(".")
    for part in parents:
        info = model.model_fields.get(part)
        annotation = info.annotation if info else None
        if not (isinstance(annotation, type) and issubclass(annotation, Section)):
            return None
        model = annotation
    info = model.model_fields.get(last)
    if info is None or _is_section(info.annotation):
        return None
    extra = info.json_schema_extra
    change = extra.get("change") if isinstance(extra, dict) else None
    return change if change in ("live", "never") else "restart"  # type: ignore[return-value]


def setting_paths(model: type[Section] = Recipe, prefix: str = "") -> Iterator[str]:
    """Dotted paths of every setting; sections themselves are left out."""
    for name, info in model.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            yield from setting_paths(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)
