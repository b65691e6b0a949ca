"""Writes docs/api.md, the reference of the Python way, from docstrings (`make docs`).

It reads sources and imports nothing, so that it needs no package.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
SHOWN = {
    "Training": [("run/started.py", "train"), ("run/started.py", "RunStopped")],
    "Runs": [("run/opened.py", "open"), ("run/opened.py", "Run")],
    "What a run gives": [
        ("run/opened.py", "KeptCheckpoint"), ("run/trained.py", "Trained"),
        ("logbook/summary.py", "RunSummary"), ("logbook/segments.py", "SegmentOpening"),
        ("core/records.py", "Finding"), ("core/records.py", "StepRecord"),
    ],
    "Errors": [
        ("core/errors.py", "LonghaulError"), ("core/errors.py", "RecipeError"),
        ("core/errors.py", "UsageError"), ("core/errors.py", "DataError"),
        ("core/errors.py", "NeedsPerson"), ("core/errors.py", "ExitCode"),
    ],
}  # fmt: skip
_PREFIXED = ("train", "open")
"""Functions that are read with the package's name before them."""
_TOP = """\
# The Python way

```python
import longhaul

run = longhaul.train("quickstart", train={"steps": 200})
run.frame()[["step", "loss"]]  # also steps(), an Arrow table, and query(SQL)
model = run.load_model()
print("".join(model.write("def ")))
```

[examples/first_run.ipynb](../examples/first_run.ipynb) goes through it. `import longhaul` takes no
time: torch is imported by `load_model` alone. `train` starts the command `longhaul train` as a
process of its own, so that a notebook keeps its threads, its signals and its device; a mistake
raises what is under [Errors](#errors), with `message`, `remedy` and `exit_code`, the code that the
command would have ended with.

This page is made from docstrings: `make docs`.
"""


def page() -> str:
    """The whole page."""
    parts = [_TOP]
    for title, names in SHOWN.items():
        parts.append(f"## {title}\n")
        for file, name in names:
            path = ROOT / "src/longhaul" / file
            found = [n for n in ast.parse(path.read_text()).body if getattr(n, "name", "") == name]
            parts += _described(found[0])
    return "\n".join(parts)


def _described(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        prefix = "longhaul." if node.name in _PREFIXED else ""
        yield f"### `{prefix}{node.name}`\n"
        yield f"```python\n{_signature(node, prefix)}\n```\n"
        yield f"{_text(node)}\n"
    elif isinstance(node, ast.ClassDef):
        yield f"### `{node.name}`\n"
        yield f"{_text(node)}\n"
        rows = list(_fields(node))
        if rows:
            yield "\n".join(["| field | type | what |", "|---|---|---|", *rows]) + "\n"
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                is_property = any(ast.unparse(d) == "property" for d in method.decorator_list)
                kind = f"` → `{ast.unparse(method.returns)}`" if method.returns else "`"
                shown = f"`{method.name}{kind}" if is_property else f"`{_signature(method)}`"
                text = _text(method).replace("\n", "\n  ")
                yield f"- {shown}<br>\n  {text}\n"


def _signature(node: ast.FunctionDef, prefix: str = "") -> str:
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{prefix}{node.name}({arguments}){returns}"
    if not prefix or len(line) <= 100:
        return line
    # One argument a line, cut at the commas that stand in no bracket.
    pieces = re.split(r", (?![^\[(]*[\])])", arguments)
    body = ",\n".join(f"    {piece}" for piece in pieces)
    return f"{prefix}{node.name}(\n{body},\n){returns}"


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign):
            name, kind = ast.unparse(item.target), ast.unparse(item.annotation)
        elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant):
            name, kind = ast.unparse(item.targets[0]), ast.unparse(item.value)
        else:
            continue
        documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = " ".join(str(after.value.value).split()) if documented else ""  # type: ignore[union-attr]
        yield " | ".join(["", f"`{name}`", f"`{kind}`".replace("|", "\\|"), text, ""]).strip()


def _text(node: ast.FunctionDef | ast.ClassDef) -> str:
    """A docstring, with its sections of arguments and errors as lists."""
    lines = []
    for line in textwrap.dedent(ast.get_docstring(node) or "").splitlines():
        if line in ("Args:", "Raises:"):
            lines += [f"**{line[:-1]}**", ""]
        elif (item := re.match(r"    (\w+): (.*)", line)) is not None:
            lines.append(f"- `{item[1]}`: {item[2]}")
        else:
            lines.append(f"  {line.strip()}" if line.startswith("     ") else line)
    return "\n".join(lines).strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
