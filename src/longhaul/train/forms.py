"""The forms of passes that are compiled, each at its first: it takes a minute, and is no training.

Enters: a model, shapes of micro-batches. Leaves: whether a pass is the first of its form.
Never knows: steps, or what is booked where.
"""

import torch

from longhaul.config.model import ModelSection
from longhaul.model.masks import flex_attends


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
        return is_new and flex_attends(self._settings, length, self._device)

    def _form(
        self, sequences: int, length: int, window: int | None, read_gauges: bool
    ) -> tuple[object, ...] | None:
        """None: nothing is compiled for it."""
        if flex_attends(self._settings, length, self._device):
            return sequences, length, window, read_gauges
        if not self._compiled:
            return None
        return ("gauges",) if read_gauges else (sequences, length, window)
