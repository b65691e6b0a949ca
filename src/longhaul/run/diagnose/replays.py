"""Steps computed again: as they were trained, or in plain form."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from longhaul.checkpoint.capture import Stateful, TrainingState, capture, hand_back, local_of
from longhaul.config.recipe import Recipe
from longhaul.config.train import PrecisionSection
from longhaul.data.dataset import Dataset
from longhaul.diagnose.signs import Figures, Series
from longhaul.model.compiling import refuse_without_compiler
from longhaul.model.device import generator_states, put_back_generators
from longhaul.optim.optimizer import FUSED_DEVICES
from longhaul.parallel.device import settle_torch
from longhaul.run.diagnose.bundle import Bundle, StepInput
from longhaul.train.effective import do_reset, fit_optimizer, parts_for
from longhaul.train.parts import build_step
from longhaul.train.state import Progress, training_state
from longhaul.train.step import TrainingStep


class Replayer:
    """Makes given steps with a `TrainingStep`, whose state is not kept; `plain` ones in eager
    float32, unsharded, with attention and update written out: no kernel that fuses.
    """

    def __init__(
        self,
        step: TrainingStep,
        settings: Recipe,
        end_of_text: int | None = None,
        plain: bool = False,
    ) -> None:
        self.step = step
        self.plain = plain
        self.progress = Progress(settings, "")
        self._end_of_text = end_of_text

    @classmethod
    def fresh(
        cls,
        settings: Recipe,
        vocab_size: int,
        end_of_text: int | None,
        device: torch.device,
        plain: bool = False,
    ) -> "Replayer":
        """A replayer with a model of its own on this device."""
        refuse_without_compiler(settings, device, trains=not plain)
        compiled = settings.machine.compiles and not plain
        machine = {"activation_checkpointing": "none", "compile": compiled}
        own = {
            "machine": settings.machine.model_copy(update=machine),
            "precision": PrecisionSection(compute="float32") if plain else settings.precision,
        }
        alone = settings.model_copy(update=own)
        step = build_step(alone, vocab_size, end_of_text, device)
        return cls(step, settings, end_of_text, plain)

    @contextmanager
    def in_plain_form(self) -> Iterator[None]:
        """Its steps are plain until the body ends, if its weights are in float32."""
        before, self.plain = self.plain, True
        try:
            with self.step.plainly():
                yield
        finally:
            self.plain = before
            self._fuse(fused=True)

    def parts_for(self, facts: Mapping[str, Any], dataset: Dataset) -> dict[str, Stateful]:
        """All parts of a checkpoint with these facts, to restore it into."""
        self.progress = Progress(self.progress.settings, dataset.identity, dataset.continues)
        return parts_for(self.step, self.progress, facts)

    def prepare(self, given: StepInput) -> None:
        """Bring the settings of a step into force, and do the resets that came before it."""
        self.progress.settings = given.settings
        fit_optimizer(self.step, given.settings.optim)
        if self.plain:
            self._fuse(fused=False)
        for reset in given.resets:
            if reset.number > self.progress.resets_done:
                do_reset(self.step, self.progress, reset)
        self.step.settle(given.settings.model, given.step - 1)
        self.step.apply_settings(given.settings.optim, given.learning_rate)

    def make(self, given: StepInput) -> Figures:
        """Make a step that was prepared for."""
        with _unfused() if self.plain else nullcontext():
            figures = self.step(
                given.batch,
                given.micro_sequences,
                given.learning_rate,
                given.read_gauges,
                given.window,
            ).tolist()
        loss, gradient_norm, masked = figures[:3]
        gauges = self.step.readings(figures).gauges
        return Figures(given.step, loss, gradient_norm, bool(masked), gauges)

    def replay(self, bundle: Bundle, inputs: Iterable[StepInput] | None = None) -> Series:
        """Go on from the state of `bundle`, and make its steps, or others.

        Half weights become float32 in plain form.
        """
        parts = self._parts()
        live = capture(parts)
        with torch.no_grad():
            for name, tensor in live.tensors.items():
                local_of(tensor).copy_(bundle.state.tensors[name])
        facts = {part: bundle.state.facts[part] for part in parts}
        hand_back(parts, TrainingState(live.tensors, facts))
        self.progress.resets_done = bundle.resets_done
        figures = []
        for given in inputs or bundle.inputs:
            self.prepare(given)
            figures.append(self.make(given))
        return tuple(figures)

    def bundle(self, inputs: tuple[StepInput, ...]) -> Bundle:
        """A copy on the host of the state as it is now, with steps to make from it."""
        live = capture(self._parts())
        tensors = {name: local_of(t).cpu().clone() for name, t in live.tensors.items()}
        vocabulary = self.step.model.vocab_size, self._end_of_text
        return Bundle(
            TrainingState(tensors, live.facts), inputs, *vocabulary, self.progress.resets_done
        )

    def _fuse(self, *, fused: bool) -> None:
        """Let update rules use kernels that fuse, where their device has them, or not."""
        for rule in self.step.optimizer.rules:
            rule.fused = fused and rule.device.type in FUSED_DEVICES

    def _parts(self) -> dict[str, Stateful]:
        parts = training_state(self.step, self.progress)
        return {name: owner for name, owner in parts.items() if name != "progress"}


_TF32: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
"""Torch's switches of TF32."""


@contextmanager
def _tf32_kept() -> Iterator[None]:
    """Afterwards TF32 is switched as it was."""
    before = [switch.allow_tf32 for switch in _TF32]
    try:
        yield
    finally:
        for switch, was in zip(_TF32, before, strict=True):
            switch.allow_tf32 = was


@contextmanager
def _unfused() -> Iterator[None]:
    """No TF32, and attention written out."""
    with _tf32_kept(), sdpa_kernel(SDPBackend.MATH):
        for switch in _TF32:
            switch.allow_tf32 = False
        yield


def replay_each(
    bundles: tuple[Bundle, ...], device: torch.device, plain: bool = False
) -> tuple[Series, ...]:
    """Replay bundles of one run on `device`, each from its own state."""
    replayer: Replayer | None = None
    found = []
    for bundle in bundles:
        settings = bundle.inputs[0].settings
        if replayer is None or replayer.progress.settings.optim.name != settings.optim.name:
            vocabulary = bundle.vocab_size, bundle.end_of_text
            replayer = Replayer.fresh(settings, *vocabulary, device, plain)
        found.append(replayer.replay(bundle))
    return tuple(found)


@contextmanager
def settled(settings: Recipe, threads: int | None, device: torch.device) -> Iterator[None]:
    """Torch's flags and threads as the run had them, and generators that may be used up.

    A live trainer of the same process finds its own again afterwards. Other counts of threads give
    other bits. Only the generators of `device` are read: each would take memory of its device.
    """
    before = torch.get_num_threads()
    generators = generator_states(device)
    try:
        with _tf32_kept():
            settle_torch(settings)
            if threads is not None:
                torch.set_num_threads(threads)
            yield
    finally:
        torch.set_num_threads(before)
        put_back_generators(generators, device)
