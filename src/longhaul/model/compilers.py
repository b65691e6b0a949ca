"""Whether this machine can generate the code that a recipe asks for, told before a device computes.

Triton builds a small C module for each kernel's launcher, and inductor C++ for a CPU: without a
compiler a run would end in its first step, or, with FlexAttention, in its first evaluation.

Enters: a recipe, a device's kind. Leaves: nothing, or one error that names everything missing.
Never knows: models, kernels.
"""

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch

from longhaul.config.recipe import Recipe
from longhaul.core.errors import RecipeError
from longhaul.model.masks import flex_attends


def refuse_without_compiler(recipe: Recipe, device: torch.device, trains: bool = True) -> None:
    """Refuse a recipe whose code cannot be generated here.

    Args:
        recipe: says whether its model is compiled, and how it attends.
        device: where it computes.
        trains: steps are made, which alone `machine.compile` is about.

    Raises:
        RecipeError: something is missing; all of it is named, with what to install or to set.
    """
    compiles = recipe.machine.compile and trains
    masked = [name for name in ("window", "document_mask") if getattr(recipe.model, name)]
    attends = flex_attends(recipe.model, recipe.model.context, device)
    wanted = ["machine.compile"] * compiles + [f"model.{name}" for name in masked] * attends
    if not wanted or device.type not in ("cpu", "cuda"):
        return
    missing = list(_for_triton() if device.type == "cuda" else _for_cpu())
    if not missing:
        return
    ways = ["install it" if len(missing) == 1 else "install them"]
    ways += ["set machine.compile=false"] * (compiles and not attends)
    # Uncompiled it would write all scores out.
    ways += ["train on another device (machine.device)"] * attends
    raise RecipeError(
        f"{', '.join(wanted)}: code is generated for {device.type}, and this machine lacks "
        f"{'; and '.join(missing)}",
        ", or ".join(ways),
    )


def _for_triton() -> Iterator[str]:
    if importlib.util.find_spec("triton") is None:
        yield "Triton (`pip install triton`)"
    if not _is_there("CC", "gcc", "clang"):
        yield f"a C compiler ({_looked_for('CC', 'gcc', 'clang')}; `apt install gcc`)"
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        yield f"Python's headers ({headers}/Python.h; `apt install python3-dev`)"


def _for_cpu() -> Iterator[str]:
    from torch._inductor import config

    names = [name for name in config.cpp.cxx if name]
    if not any(map(shutil.which, names)):
        yield f"a C++ compiler ({_looked_for('CXX', *names[-1:])}; `apt install g++`)"


def _is_there(variable: str, *names: str) -> bool:
    own = os.environ.get(variable)
    return any(map(shutil.which, names if own is None else (own,)))


def _looked_for(variable: str, *names: str) -> str:
    own = os.environ.get(variable)
    return (
        f"{variable}={own}" if own else f"looked for {', '.join(names)}; {variable} names another"
    )
