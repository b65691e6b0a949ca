"""A training pass of the model: eager, through torch.compile whole, or block by block.

Shapes: B sequences of a micro-batch, T tokens of a sequence.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longhaul.model.code_cache import leave_full_cache
from longhaul.model.compilations import Compilations
from longhaul.model.compiling import Forms, compiled_by_shape
from longhaul.model.gpt import GPT
from longhaul.model.masks import Window, flex_attends, staged_window
from longhaul.model.tap import Tap
from longhaul.model.weights import add_in_place

if TYPE_CHECKING:  # it imports a second's worth of torch
    from longhaul.parallel.recompute import CompiledBlocks


class Passes:
    """How `model` computes, of which this rank has a part only if it `is_shared`."""

    def __init__(
        self,
        model: GPT,
        device: torch.device,
        compiled: bool,
        is_shared: bool,
        records_graphs: bool = False,
    ) -> None:
        self._model, self._device, self._is_shared = model, device, is_shared
        self.forward: Callable[..., Tensor] = model
        self.forms = Forms(model.settings, device, compiled=False)
        self.compilations: Compilations | None = None
        """Counts them, where there are any."""
        self._blocks: CompiledBlocks | None = None
        self._windows: dict[int, Tensor] = {}
        self.records_graphs = False
        """Passes are CUDA graphs."""
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self.switch(compiled, records_graphs)

    def switch(self, compiled: bool, records_graphs: bool = False) -> None:
        """Compute so from now on. Of a model that is shared graphs are not recorded."""
        before = self.forms.compiled, self.records_graphs
        if self.compilations is not None and before == (compiled, records_graphs):
            return  # what was compiled stays known
        model, device, forms = self._model, self._device, self.forms
        self.records_graphs = records_graphs
        self.forward = model
        if compiled and not self._is_shared:
            self.forward = compiled_by_shape(model, records_graphs=records_graphs)
        if self._is_shared and compiled and self._blocks is None:
            from longhaul.parallel.recompute import CompiledBlocks

            self._blocks = CompiledBlocks(model)
        if self._blocks is not None:
            self._blocks.enabled = compiled
        self.forms = Forms(
            model.settings, device, compiled, self._is_shared, forms.ahead, forms.clamp
        )
        attends = flex_attends(model.settings, model.settings.context, device)
        if not (compiled or attends):
            self.compilations = None
        elif self.compilations is None:
            self.compilations = Compilations()
        if device.type == "cpu" and not self._is_shared:
            but = ("tokens",) if model.settings.tied_head else ()
            add_in_place(model, but, adds=not compiled)

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Passes in the body are eager."""
        before, self.forward = (self.forward, self.forms), self._model
        self.forms = Forms(self._model.settings, self._device, compiled=False)
        were_compiled = self._blocks is not None and self._blocks.enabled
        try:
            if self._blocks is not None:
                self._blocks.enabled = False
            yield
        finally:
            self.forward, self.forms = before
            if self._blocks is not None:
                self._blocks.enabled = were_compiled

    def keep_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """After a backward pass: copy new gradients out of a graph's memory, which the next pass
        writes again; those that are there already were added to in place.
        """
        if not self.records_graphs:
            return
        own = self._gradients
        new = [p for p in parameters if p.grad is not None and p.grad is not own.get(p)]
        given = [p.grad for p in new if p.grad is not None]
        for parameter, gradient in zip(new, given, strict=True):
            kept = own.get(parameter)
            if kept is None or kept.shape != gradient.shape:
                own[parameter] = torch.empty_like(gradient)
        if new:
            torch._foreach_copy_([own[parameter] for parameter in new], given)
        for parameter in new:
            parameter.grad = own[parameter]

    def loss(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        window: int | None,
        tap: Tap | None,
        **of_stage: Any,
    ) -> Tensor:
        """The summed loss, or what a stage of a pipeline gives; with a `tap` gauges are read."""
        sequences, length = tokens_BT.shape
        is_new = self.forms.see(sequences, length, window, tap is not None)
        counts = self.compilations
        if counts is not None:
            if is_new:
                leave_full_cache()
            counts.begin()
        if self.records_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        given = of_stage | {"window": self._as_given(window, length)}
        if tap is None:
            loss = self.forward(tokens_BT, targets_BT, **given)
        else:
            with tap.open_for_forward():
                loss = self.forward(tokens_BT, targets_BT, tap=tap, **given)
        if counts is not None:
            counts.end(is_new)
        return loss

    def _as_given(self, window: int | None, length: int) -> Window:
        """To code that is compiled a window is a tensor, so that a stage of `model.window_stages`
        compiles nothing.
        """
        settings = self._model.settings
        if self.compilations is None or not settings.window_stages:
            return window
        staged = staged_window(settings, window, length)
        if staged is None:
            return length
        if staged not in self._windows:
            self._windows[staged] = torch.full((), staged, device=self._device)
        return self._windows[staged]
