"""What is missing to generate code is told before a device computes."""

import shutil
from pathlib import Path

import pytest
import torch

from fakes import SilentView
from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.core.errors import ExitCode, RecipeError
from longhaul.model import compiling
from longhaul.model.compiling import refuse_without_compiler
from longhaul.run.train.launch import Start, start

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def recipe(*options: str) -> Recipe:
    return load_recipe("quickstart", options).recipe


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(compiling.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)


def test_graphs_are_refused_where_none_can_be_recorded() -> None:
    with pytest.raises(RecipeError, match="CUDA graphs need a CUDA device, and this run is on cpu"):
        refuse_without_compiler(recipe('machine.compile="cuda-graphs"'), CPU)


@pytest.mark.usefixtures("nothing_installed")
def test_everything_that_triton_needs_is_told_at_once() -> None:
    with pytest.raises(RecipeError) as told:
        refuse_without_compiler(recipe("machine.compile=true"), CUDA)
    message = str(told.value)
    for word in ("machine.compile", "Triton", "gcc, clang", "Python.h", "machine.compile=false"):
        assert word in message
    assert told.value.exit_code is ExitCode.RECIPE_WRONG


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("option", ["model.window=64", "model.document_mask=true"])
def test_flex_attention_needs_it_although_nothing_else_is_compiled(option: str) -> None:
    with pytest.raises(RecipeError, match=f"^{option.partition('=')[0]}: code is generated"):
        refuse_without_compiler(recipe(option), CUDA)
    with pytest.raises(RecipeError):
        refuse_without_compiler(recipe(option), CUDA, trains=False)
    # Attention without a mask, with dropout, or over less than a square, goes another way.
    for others in ((), (option, "model.dropout=0.1"), (option, "model.context=128")):
        refuse_without_compiler(recipe(*others), CUDA)
    refuse_without_compiler(recipe(option), CPU)


@pytest.mark.usefixtures("nothing_installed")
def test_on_a_cpu_a_cpp_compiler_is_needed_to_train_and_not_to_read() -> None:
    with pytest.raises(RecipeError, match=r"lacks a C\+\+ compiler"):
        refuse_without_compiler(recipe("machine.compile=true"), CPU)
    refuse_without_compiler(recipe("machine.compile=true"), CPU, trains=False)
    refuse_without_compiler(recipe(), CPU)


def test_a_compiler_that_the_environment_names_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(compiling.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: "there")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    compiled = recipe("machine.compile=true")
    refuse_without_compiler(compiled, CUDA)
    monkeypatch.setenv("CC", "/opt/none/cc")
    with pytest.raises(RecipeError, match="CC=/opt/none/cc"):
        refuse_without_compiler(compiled, CUDA)


def test_a_run_ends_before_its_first_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prepared: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    options = ("machine.compile=true", "model.width=16", "model.layers=1")
    with pytest.raises(RecipeError, match=r"C\+\+ compiler") as told:
        start(Start("drill", options, runs=tmp_path, prepared=prepared), SilentView())
    assert told.value.exit_code is ExitCode.RECIPE_WRONG


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    return tmp_path / "prepared"
