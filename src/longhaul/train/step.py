"""One optimizer step: forward, backward, gate, update. Every other line of longhaul serves this.

Shapes: B sequences of a micro-batch, T tokens of a sequence.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from longhaul.config.model import ModelSection
from longhaul.config.optim import OptimSection
from longhaul.config.train import PrecisionSection
from longhaul.core.faults import Point, point
from longhaul.core.schedules import derive_key
from longhaul.core.units import Seconds
from longhaul.data.batches import Batch, real_tokens
from longhaul.model.chunked_loss import kernel_for
from longhaul.model.device import (
    generator_states,
    key_generators,
    put_back_generators,
    to_device,
    wait_for,
)
from longhaul.model.gpt import GPT
from longhaul.monitor.gauges import ModelGauges, Readings
from longhaul.monitor.weights import tensors_norm
from longhaul.optim.gate import LossScale
from longhaul.optim.optimizer import LiveSettings, Optimizer
from longhaul.train.passes import Passes
from longhaul.train.precision import autocast
from longhaul.train.pulse import Pulse

if TYPE_CHECKING:  # one process alone has no use for it, and FSDP takes a second to import
    from longhaul.parallel.parallelize import Parallel
    from longhaul.parallel.pipeline import Pass, StageGPT


class TrainingStep:
    """The step of one model, whose weights are on `device` already.

    Generators are re-keyed from (seed, draw, micro-batch); the loss scale is for fp16 weights;
    `sources` are the names, by number, of those whose losses are told apart. Where `parallel` deals
    the model out over many processes, each is given its share of the batch, and all have the same
    figures.
    """

    def __init__(
        self,
        model: GPT,
        optimizer: Optimizer,
        device: torch.device,
        precision: PrecisionSection,
        seed: int,
        loss_scale: LossScale | None = None,
        compiled: bool = False,
        records_graphs: bool = False,
        sources: Sequence[str] = (),
        parallel: "Parallel | None" = None,
    ) -> None:
        self.model = model
        model.loss_kernel = kernel_for(device)
        self.parallel = parallel
        self.optimizer = optimizer
        self.loss_scale = loss_scale
        self.device = device
        sharding = None if parallel is None else parallel.sharding
        self.model_gauges = ModelGauges(model, optimizer.groups, device, sources, sharding)
        self.passes = Passes(model, device, compiled, parallel is not None, records_graphs)
        self._precision = precision
        self._seed = seed
        # What is drawn differs between ranks, as they compute different things.
        self._own: tuple[int, ...] = () if parallel is None else (parallel.world.rank,)
        self.before_change: Callable[[], None] = lambda: None
        """Called before weights or the optimizer's state change: a save may still read them."""
        self.alive: Callable[[], None] = lambda: None
        self.pulse: Pulse | None = None
        """Times this rank's own computing, among many."""

    def __call__(
        self,
        batch: Batch,
        micro_sequences: int,
        learning_rate: float,
        read_gauges: bool,
        window: int | None = None,
    ) -> torch.Tensor:
        """Make one update with the global batch, or this rank's share of it; hold it back if loss
        or gradient is not finite. Nothing is waited for.

        With `read_gauges` every gauge of `monitor/` is read, and the update is the same to the bit.
        `window` is the positions that windowed layers attend to, while it is not `model.window`.

        Returns:
            float32 on the device: loss in nats per target token, gradient norm, 1 if masked; the
            loss scale's figures, if there is one; then, if asked for, every gauge (see `readings`).
        """
        batch = point(Point.BATCH, batch, step=self, learning_rate=learning_rate)
        if not self.model.training:  # walking through all modules costs 0.1 ms
            self.model.train()
        with self.pulse.computing() if self.pulse is not None else nullcontext():
            loss = self.compute(batch, micro_sequences, read_gauges, window, updates=True)
        self.alive()
        if self.parallel is not None:
            self.parallel.sum_gradients()
        scale = self.loss_scale.scale.clone() if self.loss_scale is not None else None
        self.before_change()
        self.alive()
        gate = self.optimizer.judge(loss, scale)
        self.optimizer.set_learning_rate(learning_rate)
        if self.optimizer.draws:
            key_generators(derive_key(self._seed, "rounding", batch.draw), self.device)
        with (
            self.model_gauges.watch(self.optimizer, gate, scale, batch.num_targets)
            if read_gauges
            else nullcontext()
        ):
            self.optimizer.step(gate)
        self.alive()
        self.optimizer.clear_gradients()
        figures = [gate.loss, gate.gradient_norm, gate.masked]
        if self.loss_scale is not None and scale is not None:
            figures += [scale, self.loss_scale.update(gate)]
        stacked = torch.stack(figures).float()
        if read_gauges:
            source_B = None if batch.source_B is None else to_device(batch.source_B, self.device)
            stacked = torch.cat((stacked, self.model_gauges.drain(source_B)))
        point(Point.UPDATED, self)
        return stacked

    def settle(self, settings: ModelSection, step: int) -> None:
        """Bring into force, for the step after `step`, what of the model may change between two."""
        self.model.residual_clamp = self.passes.forms.clamp = settings.residual_clamp
        self.model.ahead = self.passes.forms.ahead = settings.ahead_at(step)

    def compute(
        self,
        batch: Batch,
        micro_sequences: int,
        read_gauges: bool = False,
        window: int | None = None,
        updates: bool = False,
    ) -> torch.Tensor:
        """Forward and backward passes of `__call__`; this rank's share of the loss.

        `updates`: an update is made of the gradients as they are then.
        """
        if self.parallel is not None and self.parallel.staged is not None:
            return self._through_stages(
                self.parallel, self.parallel.staged, batch, micro_sequences, read_gauges, window,
                updates,
            )  # fmt: skip
        loss, divisor = torch.zeros((), device=self.device), self._divisor(batch)
        micro_batches = zip(
            batch.tokens_BT.split(micro_sequences),
            batch.targets_BT.split(micro_sequences),
            strict=True,
        )
        for number, (tokens_BT, targets_BT) in enumerate(micro_batches):
            self.alive()
            self._key_generators(batch, number)
            # The sum over the global number of targets, never a mean of means.
            micro_loss = self._loss(tokens_BT, targets_BT, read_gauges, window) / divisor
            if self.parallel is not None:
                done = (number + 1) * micro_sequences
                is_last = done >= len(batch.tokens_BT)
                self.parallel.before_backward(read_gauges or is_last)
                self.optimizer.before_backward(updates and is_last)
            self._backward(micro_loss)
            loss += micro_loss.detach()
            if read_gauges and number == 0 and len(targets_BT) < len(batch.targets_BT):
                self._see_first(batch, len(targets_BT), self._norm_so_far())
        return loss

    def _through_stages(
        self,
        parallel: "Parallel",
        staged: "StageGPT",
        batch: Batch,
        micro_sequences: int,
        read_gauges: bool,
        window: int | None,
        updates: bool,
    ) -> torch.Tensor:
        """The same in a pipeline; the loss is 0 in all stages but the last."""
        tokens = batch.tokens_BT.split(micro_sequences)
        targets = batch.targets_BT.split(micro_sequences)
        losses, divisor = torch.zeros((), device=self.device), self._divisor(batch)

        first_stage = staged.pipe.own_stages[0]
        first = parallel.first_gradient() if read_gauges and len(tokens) > 1 else None

        def forward(one: "Pass", given: torch.Tensor | None) -> torch.Tensor:
            self.alive()
            # Stages of one rank draw different numbers too.
            turn = (one.stage,) if one.stage > first_stage else ()
            self._key_generators(batch, one.number, *turn)
            more = {"stage": one.stage, "given_BTD": given}
            made = self._loss(tokens[one.number], targets[one.number], read_gauges, window, **more)
            return made / divisor if staged.makes_loss(one.stage) else made

        def backward(one: "Pass", made: torch.Tensor, gradient: torch.Tensor | None) -> None:
            self.alive()
            looks = first is not None and one.number == 0
            is_last = one.number == len(tokens) - 1
            parallel.before_backward(looks or is_last, looks or one.stage == first_stage)
            self.optimizer.before_backward(updates and is_last)
            if gradient is None:
                self._backward(made)
                losses.add_(made.detach())
            else:
                made.backward(gradient.to(made.dtype))
            if first is not None and looks:
                first.see(parallel.layers_elsewhere(one.stage))

        staged.pipe.run([staged.shape_of(of_one) for of_one in tokens], forward, backward)
        if first is not None:
            self._see_first(batch, len(targets[0]), first.norm())
        return losses

    def _divisor(self, batch: Batch) -> int | torch.Tensor:
        """Of the sum of token losses: the global number of targets that count. Where only the ranks
        together know it, it stays on the device, and nothing waits for it.
        """
        if batch.num_counted is None:
            return batch.num_targets
        counted = torch.full((), batch.num_counted, dtype=torch.int64, device=self.device)
        if self.parallel is not None:
            world = self.parallel.world
            counted = self.parallel.sharding.sum(counted) // (world.layout.size // world.data_size)
        return counted.clamp(min=1)

    def _key_generators(self, batch: Batch, number: int, *turn: int) -> None:
        key = derive_key(self._seed, "micro-batch", batch.draw, number, *self._own, *turn)
        key_generators(key, self.device)

    def rehearse(self, sequences: int, length: int) -> None:
        """Compute two micro-batches of a step that is never made, to see what it takes: from the
        second on every gradient is there while it is added to. Nothing is left behind.
        """
        tokens_BT = self._any_tokens(sequences, length)
        # On a CPU operations are followed one by one, which generated code hides.
        on_cpu = self.device.type == "cpu"
        with self.aside(), self.passes.uncompiled() if on_cpu else nullcontext():
            for _ in range(2):
                self.alive()
                # With gauges, as those steps take the most memory.
                loss = self._loss(tokens_BT, tokens_BT, read_gauges=True, window=None)
                self._backward(loss / tokens_BT.numel())

    def time_passes(self, sequences: int, length: int, number: int) -> list[Seconds]:
        """Of so many micro-batches of steps that are never made, forward and backward; nothing is
        left behind.
        """
        tokens_BT, took_s = self._any_tokens(sequences, length), []
        with self.aside():
            for _ in range(number):
                self.alive()
                wait_for(self.device)
                began = time.perf_counter()
                loss = self._loss(tokens_BT, tokens_BT, read_gauges=False, window=None)
                self._backward(loss / tokens_BT.numel())
                wait_for(self.device)
                took_s.append(time.perf_counter() - began)
        return took_s

    def _any_tokens(self, sequences: int, length: int) -> torch.Tensor:
        return torch.arange(sequences * length).view(sequences, length) % self.model.vocab_size

    def rehearse_evaluation(self, sequences: int, length: int) -> None:
        """Compute one pass of an evaluation, to see what it takes; nothing is left behind."""
        tokens_BT = to_device(self._any_tokens(sequences, length), self.device)
        # Not in inference mode, where operations allocate out of sight of what follows tensors.
        with self.aside(), torch.no_grad(), autocast(self.device, self._precision):
            self.model.eval()
            self.model(tokens_BT, tokens_BT)
        if self.parallel is not None:
            self.parallel.rest()

    @contextmanager
    def aside(self, draws_as: tuple[int, ...] | None = None) -> Iterator[None]:
        """Passes in the body lead to no update, and leave nothing behind. Ranks of one value of
        `draws_as` drop out the same; by default each its own.
        """
        generators, own = generator_states(self.device), self._own
        was_training = self.model.training
        self._own = own if draws_as is None else draws_as
        self.model.train()
        try:
            yield
        finally:
            self._own = own
            self.optimizer.clear_gradients()
            self.model_gauges.discard()
            self.model.train(was_training)
            put_back_generators(generators, self.device)

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """Steps in the body compute eagerly, by PyTorch's own operations, and in float32 if their
        weights are.
        """
        before, self._precision = self._precision, PrecisionSection(compute="float32")
        kernel, self.model.loss_kernel = self.model.loss_kernel, None
        try:
            with self.passes.uncompiled():
                yield
        finally:
            self._precision = before
            self.model.loss_kernel = kernel

    def apply_settings(self, settings: OptimSection, learning_rate: float) -> None:
        """Take changed settings into the optimizer and the loss scale; all state is kept."""
        self.before_change()
        settings = point(Point.OPTIMIZER_SETTINGS, settings, step=self)
        self.optimizer.apply_settings(settings)
        self.optimizer.set_learning_rate(learning_rate)
        if self.loss_scale is not None:
            self.loss_scale.apply_settings(settings.loss_scale)

    def live_settings(self) -> LiveSettings:
        """Settings read back from where the next step reads them."""
        scale = self.loss_scale.live_settings() if self.loss_scale is not None else {}
        return self.optimizer.live_settings() | scale

    def expected_settings(self, settings: OptimSection, learning_rate: float) -> LiveSettings:
        """What `live_settings` must say under `settings`."""
        scale = self.loss_scale
        wanted = scale.expected_settings(settings.loss_scale) if scale is not None else {}
        return self.optimizer.expected_settings(settings, learning_rate) | wanted

    @property
    def num_figures(self) -> int:
        """Figures before the gauges: loss, gradient norm, masked; with a loss scale also the scale
        that the step was made at, and whether it overflowed with nothing left to back off to.
        """
        return 3 if self.loss_scale is None else 5

    def readings(self, figures: list[float]) -> Readings:
        """The gauges among a step's figures; empty if none were read."""
        readings = figures[self.num_figures :]
        return self.model_gauges.by_name(readings) if readings else Readings()

    def _see_first(self, batch: Batch, sequences: int, norm: torch.Tensor) -> None:
        """Have the gradient of the first of several micro-batches of so many sequences read."""
        length = batch.targets_BT.size(1)
        if self.parallel is not None:
            sequences = self.parallel.rows_in_first(batch.num_targets // length, sequences)
        self.model_gauges.see_first(norm, sequences * length)

    def _norm_so_far(self) -> torch.Tensor:
        if self.parallel is not None:
            first = self.parallel.first_gradient()
            first.see()
            return first.norm()
        weights = (weight for group in self.optimizer.groups for weight in group.parameters)
        return tensors_norm([weight.grad for weight in weights if weight.grad is not None])

    def _backward(self, micro_loss: torch.Tensor) -> None:
        if self.loss_scale is not None:
            micro_loss = self.loss_scale.scale_loss(micro_loss)
        micro_loss.backward()
        self.passes.keep_gradients(self.model.parameters())
        point(Point.BACKWARD, self)

    def _loss(
        self,
        tokens_BT: torch.Tensor,
        targets_BT: torch.Tensor,
        read_gauges: bool,
        window: int | None,
        **of_stage: Any,  # which one of a pipeline, and what the one before gave
    ) -> torch.Tensor:
        if self.parallel is not None and read_gauges:
            real_BT = real_tokens(tokens_BT, targets_BT)
            read_gauges, tokens_BT = (False, tokens_BT) if real_BT is None else (True, real_BT)
        tokens_BT = to_device(tokens_BT, self.device)
        targets_BT = to_device(targets_BT, self.device)
        tap = self.model_gauges.tap if read_gauges else None
        with autocast(self.device, self._precision):
            loss = self.passes.loss(tokens_BT, targets_BT, window, tap, **of_stage)
        return point(Point.LOSS, loss, step=self, sequences=len(tokens_BT))
