"""torch.compile as longhaul uses it, what it compiles when, and whether this machine can generate
the code: without a C or C++ compiler a run would end in its first step, or in its first evaluation.
"""

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from longhaul.config.model import ModelSection
from longhaul.config.recipe import Recipe
from longhaul.core.errors import RecipeError
from longhaul.model.masks import flex_attends, staged_window


def refuse_without_compiler(recipe: Recipe, device: torch.device, trains: bool = True) -> None:
    """Refuse, by a `RecipeError` that names all that is missing, a recipe whose code cannot be
    generated here. Only where it `trains` is `machine.compile` about it.
    """
    compiles = recipe.machine.compiles and trains
    if compiles and recipe.machine.records_graphs and device.type != "cuda":
        raise RecipeError(
            f"machine.compile: CUDA graphs need a CUDA device, and this run is on {device.type}",
            "set machine.compile=true, or machine.compile=auto to have it measured",
        )
    masked = [name for name in ("window", "document_mask") if getattr(recipe.model, name)]
    attends = flex_attends(recipe.model, recipe.model.context, device)
    wanted = ["machine.compile"] * compiles + [f"model.{name}" for name in masked] * attends
    if not wanted or device.type not in ("cpu", "cuda"):
        return
    missing = list(lacks_for_triton() if device.type == "cuda" else _for_cpu())
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


def lacks_for_triton() -> Iterator[str]:
    """What this machine lacks for kernels in Triton, and how to get it."""
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


_FORMS = 256
"""Of one function that may be compiled, as torch allows for all together."""


def compiled_by_shape(
    function: Callable[..., Any],
    kept_by_checkpointing: bool = False,
    alike: int = 1,
    records_graphs: bool = False,
) -> Callable[..., Any]:
    """`function` through torch.compile, anew for every shape and every number it is given.

    By default torch would compile the second shape for all shapes to come: a resumed run that
    begins at that shape would have other bits than one that came to it. And after 8 forms it would
    go on uncompiled with no more than a warning: FlexAttention then writes all scores out.

    Selective activation checkpointing may keep the results of code that is `kept_by_checkpointing`,
    as one operation (`parallel/recompute.py`); not before torch 2.13, which confuses those of
    several.

    With `records_graphs` a pass is recorded once as a CUDA graph, and then started as one: what it
    returns lies in memory that the next pass writes again.
    """
    limits = torch._dynamo.config
    # Methods of `alike` modules are one function to torch, which counts the forms of all.
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, _FORMS * alike)
    limits.recompile_limit = limits.accumulated_recompile_limit
    limits.fail_on_recompile_limit_hit = True
    options: dict[str, Any] = {}
    if kept_by_checkpointing and hasattr(torch.utils.checkpoint, "_sac_storage_key"):
        options["wrap_inductor_compiled_regions"] = True
    if records_graphs:
        options["triton.cudagraphs"] = True
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False, options=options or None)
    return compiled


@dataclass(eq=False)
class Forms:
    """The forms of passes that a process has compiled, each at its first, which takes a minute."""

    settings: ModelSection
    device: torch.device
    compiled: bool
    """The model runs through torch.compile."""
    by_block: bool = False
    """Its blocks do, each for itself, but in passes that read gauges (`parallel/recompute.py`)."""
    ahead: tuple[float, ...] = ()
    """Weights of the tokens after the next one: other weights are another form."""
    clamp: float | None = None
    """Of the residual stream; another one as well."""
    _seen: set[tuple[object, ...] | None] = field(default_factory=lambda: {None}, init=False)

    def is_new(self, sequences: int, length: int, window: int | None, read_gauges: bool) -> bool:
        """Whether a micro-batch of training compiles something: the model, or attention's kernel.
        With gauges it is another form.
        """
        return self._form(sequences, length, window, read_gauges) not in self._seen

    def see(self, sequences: int, length: int, window: int | None, read_gauges: bool) -> bool:
        """A micro-batch is computed; whether that compiles something."""
        is_new = self.is_new(sequences, length, window, read_gauges)
        self._seen.add(self._form(sequences, length, window, read_gauges))
        return is_new

    def see_evaluation(self, length: int) -> bool:
        """Sequences of `length` are evaluated; whether something must be compiled for that."""
        is_new = ("evaluation",) not in self._seen
        self._seen.add(("evaluation",))
        return is_new and flex_attends(self.settings, length, self.device)

    def _form(
        self, sequences: int, length: int, window: int | None, read_gauges: bool
    ) -> tuple[object, ...] | None:
        """None: nothing is compiled for it."""
        compiled = self.compiled and not (self.by_block and read_gauges)
        if not (compiled or flex_attends(self.settings, length, self.device)):
            return None
        of_model = (self.ahead, self.clamp) if compiled else ()
        kind: object = window
        if self.settings.window_stages:  # all that hide something are alike
            kind = staged_window(self.settings, window, length) is None
        return sequences, length, kind, read_gauges, of_model
