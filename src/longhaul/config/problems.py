"""What is wrong with a recipe, a line each: `optim.lr: -0.1 is not > 0 (recipe.toml:14)`.

`tomllib` gives values without positions; a message without a line makes people search.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails

from longhaul.config.recipe import SETTINGS
from longhaul.core.errors import RecipeError
from longhaul.core.strict import bare_toml

_TABLE = re.compile(r"^\s*(\[\[?)([^\]]++)\]\]?\s*(#.*)?$")
_NAME = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_KEY = re.compile(rf"^\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")


def lines_of_settings(text: str) -> dict[str, int]:
    """Line (from 1) of every key and table header in `text`."""
    lines: dict[str, int] = {}
    table = ""
    counts: dict[str, int] = {}
    closing = ""
    depth = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if closing:
            closing = "" if closing in line else closing
            continue
        if depth > 0:
            depth += _open_brackets(line)
            continue
        if header := _TABLE.match(line):
            path = _joined(header.group(2))
            if header.group(1) == "[[":
                index = counts.get(path, 0)
                counts[path] = index + 1
                path = f"{path}.{index}"
            table = path
            lines.setdefault(path, number)
        elif key := _KEY.match(line):
            path = _joined(key.group(1))
            lines[f"{table}.{path}" if table else path] = number
            value = line[key.end() :]
            unclosed = (quotes for quotes in ('"""', "'''") if value.count(quotes) == 1)
            closing = next(unclosed, "")
            depth = 0 if closing else max(0, _open_brackets(value))
    return lines


def _joined(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _open_brackets(text: str) -> int:
    bare = bare_toml(text)
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one setting."""

    path: str
    """Dotted path, list positions as numbers."""
    text: str
    origin: str = ""
    """`file:line` or the option that set it."""

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" + (f" ({self.origin})" if self.origin else "")


_SEE_RECIPES = (
    "`longhaul recipe show NAME` lists every setting, `longhaul recipe schema` what each takes"
)


def raise_problems(
    problems: Iterable[Problem], name: str, kind: str = "recipe", remedy: str = _SEE_RECIPES
) -> None:
    """Raise one error with every problem of a file of this kind, if there are any."""
    found = list(dict.fromkeys(problems))
    if not found:
        return
    lines = "\n".join(f"  {problem}" for problem in found)
    count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
    raise RecipeError(f"{kind} {name} has {count}:\n{lines}", remedy)


def unknown_setting(path: str, origin: str = "", known: Collection[str] = SETTINGS) -> Problem:
    """The problem of a setting that does not exist, with the known one most like it."""
    plain = ".".join(part for part in path.split(".") if not part.isdigit())
    near = difflib.get_close_matches(plain, known, n=1)
    if not near:
        # A key given without its section, such as `lr` or `learning.lr`.
        last = plain.rsplit(".", 1)[-1]
        near = [setting for setting in known if setting.rsplit(".", 1)[-1] == last]
    text = "unknown setting" + (f"; did you mean {near[0]}?" if near else "")
    return Problem(path, text, origin)


def from_pydantic(
    error: ErrorDetails, origins: Mapping[str, str], known: Collection[str] = SETTINGS
) -> Problem:
    """One pydantic error in our words; `known` are the settings that there are."""
    path = ".".join(str(part) for part in error["loc"])
    origin = origin_of(path, origins)
    value, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return unknown_setting(path, origin, known)
        case "missing":
            return Problem(path, "is required and was not given", origin)
        case kind if kind in _BOUNDS:
            sign, bound = _BOUNDS[kind]
            text = f"{value!r} is not {sign} {context[bound]}"
        case "literal_error":
            text = f"{value!r} is not one of {context['expected']}"
            known = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
            near = difflib.get_close_matches(str(value), known, n=1)
            text += f"; did you mean {near[0]!r}?" if near else ""
        case "string_pattern_mismatch":
            text = f"{value!r} does not match {context['pattern']}"
        case kind if kind in _WANTED:
            text = f"{_shown(value)} is not {_WANTED[kind]}"
        case _:
            text = f"{_shown(value)}: {error['msg'].lower()}"
    return Problem(path, text, origin)


_BOUNDS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": ("≥", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("≤", "le"),
}
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "whole_or_auto": "a whole number or 'auto'",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text in quotes",
    "tuple_type": "a list",
    "model_type": "a table of settings",
    "model_attributes_type": "a table of settings",
    "dict_type": "a table of settings",
    "too_short": "long enough: at least one entry is needed",
    "string_too_short": "long enough: it must not be empty",
    "finite_number": "a finite number",
}


def origin_of(path: str, origins: Mapping[str, str]) -> str:
    """Where the setting, or the nearest table around it, was written."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
