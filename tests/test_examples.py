"""Notebooks in examples/ run from top to bottom, and the reference is that of the docstrings."""

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import longhaul
from small_runs import FEW_HELD_OUT

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "first_run.ipynb"
SMALLER = f"""
RECIPE = "drill"
SETTINGS = {{
    "train.steps": 3, "optim.schedule.warmup_steps": 1, "batch.stages": [], "model.width": 16,
    "model.layers": 1, "evaluation": {{"interval_steps": 2, "tokens": 1024}}, "sample.tokens": 4,
    "data.held_out.fraction": {FEW_HELD_OUT.partition("=")[2]},
}}
"""
"""Settings stand in one cell, so that a reader finds them, and a test can make them smaller."""


def _shown(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, as a notebook shows it."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    names: dict[str, Any] = {}
    shown = []
    for number, cell in enumerate(cells):
        assert (cell["outputs"], cell["execution_count"]) == ([], None), "clear the outputs"
        shown.append(_shown("".join(cell["source"]) + (SMALLER if number == 0 else ""), names))
    assert repr(shown[1]).startswith("run drill: finished, step 3/3")
    assert shown[2]["step"].to_pylist() == [1, 2, 3]
    assert shown[4]["step"].to_pylist() == [2, 3]
    printed = capsys.readouterr().out
    assert "finished: 3 steps" in printed
    assert "2\nrecipe drill has 1 problem:\n  optim.learning_rate" in printed


def _maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_made_from_the_docstrings_as_they_are() -> None:
    maker = _maker()
    assert maker.PAGE.read_text() == maker.page(), "`make docs` makes it again"
    shown = {name for names in maker.SHOWN.values() for _, name in names}
    assert set(longhaul.__all__) - {"__version__"} <= shown
