"""The forms of passes that are compiled, each at its first: it takes a minute, and is no training.

Enters: a model, shapes of micro-batches. Leaves: the model through torch.compile; whether a pass is
the first of its form. Never knows: steps, or what is booked where.
"""

import shutil
from collections.abc import Callable

import torch

from longhaul.config.model import ModelSection
from longhaul.core.errors import RecipeError
from longhaul.model.gpt import GPT
from longhaul.model.masks import compiles_attention


class Forms:
    """The forms that were seen in one process.

    Args:
        settings: of the model.
        device: where it computes.
        compiled: the model runs through torch.compile.
    """

    def __init__(self, settings: ModelSection, device: torch.device, compiled: bool) -> None:
        self._settings, self._device, self._compiled = settings, device, compiled
        self._seen: set[tuple[object, ...]] = set()

    def is_new(self, sequences: int, length: int, window: int | None, read_gauges: bool) -> bool:
        """Whether something must be compiled for a micro-batch of training: the model, or the
        kernel of attention. Passes that read gauges run uncompiled, but a compiled run has warmed
        nothing up for the first of them.
        """
        form = self._form(sequences, length, window, read_gauges)
        return form is not None and form not in self._seen

    def see(self, sequences: int, length: int, window: int | None, read_gauges: bool) -> None:
        """A micro-batch is computed."""
        form = self._form(sequences, length, window, read_gauges)
        if form is not None:
            self._seen.add(form)

    def see_evaluation(self, length: int) -> bool:
        """Sequences of `length` are evaluated; whether something must be compiled for that."""
        is_new = ("evaluation",) not in self._seen
        self._seen.add(("evaluation",))
        return is_new and compiles_attention(self._settings, self._device, length)

    def _form(
        self, sequences: int, length: int, window: int | None, read_gauges: bool
    ) -> tuple[object, ...] | None:
        """None: nothing is compiled for it."""
        if compiles_attention(self._settings, self._device, length):
            return sequences, length, window, read_gauges
        if not self._compiled:
            return None
        return ("gauges",) if read_gauges else (sequences, length, window)


def compiled_model(model: GPT, device: torch.device) -> Callable[..., torch.Tensor]:
    """`model` through torch.compile, anew for every shape of micro-batch and every window.

    Left alone, torch would compile the second shape for all shapes to come: a resumed run that
    begins at that shape would have other bits than one that came to it. It would also give up
    after 8 forms, and go on uncompiled with no more than a warning.

    Raises:
        RecipeError: there is nothing to compile with.
    """
    compilers = [name for name in torch._inductor.config.cpp.cxx if name]
    if device.type == "cpu" and not any(map(shutil.which, compilers)):
        raise RecipeError(
            f"machine.compile: no C++ compiler on this machine (looked for {compilers[0]})",
            "install g++, name another in the environment variable CXX, or set "
            "machine.compile=false",
        )
    limits = torch._dynamo.config
    limits.recompile_limit = limits.accumulated_recompile_limit
    compiled: Callable[..., torch.Tensor] = torch.compile(model, dynamic=False)
    return compiled
