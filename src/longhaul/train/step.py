"""One optimizer step: forward, backward, gate, update. Every other line of longhaul serves this.

Enters: a global batch on the host and the numbers in force. Leaves: updated weights, and the
step's figures as one tensor on the device. Never knows: records, intervals, files, decisions.

Shapes: B sequences of a micro-batch, T tokens of a sequence.
"""

from contextlib import AbstractContextManager

import torch

from longhaul.config.optim import OptimSection
from longhaul.config.train import PrecisionSection
from longhaul.core.keys import derive_key
from longhaul.data.batches import Batch
from longhaul.model.gpt import GPT
from longhaul.model.tap import Tap
from longhaul.optim.loss_scale import LossScale
from longhaul.optim.optimizer import LiveSettings, Optimizer

NUM_FIGURES = 3
"""Leading figures of a step: loss, gradient norm, masked."""
NUM_SCALE_FIGURES = 2
"""With a loss scale, two more: the scale that the step was made at, and whether it overflowed
although there was nothing left to back off to. Gauges may follow."""


class TrainingStep:
    """The step of one model on one device.

    Args:
        model: weights already on `device`.
        optimizer: owns the update and its state.
        device: where the step computes.
        precision: number formats.
        seed: the run's seed; generators are re-keyed from (seed, draw, micro-batch).
        loss_scale: for fp16 weights; None otherwise.
        compiled: run the model through torch.compile.
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
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loss_scale = loss_scale
        self.device = device
        self.tap = Tap(model.gauges, len(model.blocks), device)
        self._forward = torch.compile(model) if compiled else model
        self.compiles_next = compiled
        """The next step compiles the model, which takes long once."""
        self._precision = precision
        self._seed = seed

    def __call__(
        self,
        batch: Batch,
        micro_sequences: int,
        learning_rate: float,
        read_gauges: bool,
        window: int | None = None,
    ) -> torch.Tensor:
        """Make one update, or hold it back if loss or gradient is not finite (DESIGN rule 4).

        Args:
            batch: the global batch.
            micro_sequences: computed at once.
            learning_rate: of this step.
            read_gauges: let the model write its gauges.
            window: positions that windowed layers attend to, while it is not `model.window`.

        Returns:
            float32 on the device: loss in nats per target token, gradient norm, 1 if masked; the
            figures of the loss scale, if there is one; then, if asked for, every gauge as
            [layer, gauge] flattened. Nothing is waited for.
        """
        if not self.model.training:  # walking through all modules costs 0.1 ms
            self.model.train()
        loss = torch.zeros((), device=self.device)
        micro_batches = zip(
            batch.tokens_BT.split(micro_sequences),
            batch.targets_BT.split(micro_sequences),
            strict=True,
        )
        for number, (tokens_BT, targets_BT) in enumerate(micro_batches):
            key_generators(derive_key(self._seed, "micro-batch", batch.draw, number), self.device)
            # The sum over the global number of targets, never a mean of means (DESIGN rule 6).
            micro_loss = self._loss(tokens_BT, targets_BT, read_gauges, window) / batch.num_targets
            self._backward(micro_loss)
            loss += micro_loss.detach()
        scale = self.loss_scale.scale.clone() if self.loss_scale is not None else None
        gate = self.optimizer.judge(loss, scale)
        self.optimizer.set_learning_rate(learning_rate)
        self.optimizer.step(gate)
        self.optimizer.clear_gradients()
        figures = [loss, gate.gradient_norm, gate.masked]
        if self.loss_scale is not None and scale is not None:
            figures += [scale, self.loss_scale.update(gate)]
        stacked = torch.stack(figures).float()
        return torch.cat((stacked, self.tap.drain().flatten())) if read_gauges else stacked

    def apply_settings(self, settings: OptimSection, learning_rate: float) -> None:
        """Take changed settings into the optimizer and the loss scale; all state is kept."""
        self.optimizer.apply_settings(settings)
        self.optimizer.set_learning_rate(learning_rate)
        if self.loss_scale is not None:
            self.loss_scale.apply_settings(settings.loss_scale)

    def live_settings(self) -> LiveSettings:
        """Settings read back from where the next step reads them (DESIGN rule 1)."""
        scale = self.loss_scale.live_settings() if self.loss_scale is not None else {}
        return self.optimizer.live_settings() | scale

    def expected_settings(self, settings: OptimSection, learning_rate: float) -> LiveSettings:
        """What `live_settings` must say under `settings`."""
        scale = self.loss_scale
        wanted = scale.expected_settings(settings.loss_scale) if scale is not None else {}
        return self.optimizer.expected_settings(settings, learning_rate) | wanted

    @property
    def num_figures(self) -> int:
        """Figures before the gauges."""
        return NUM_FIGURES + (NUM_SCALE_FIGURES if self.loss_scale is not None else 0)

    def gauges(self, figures: list[float]) -> dict[str, tuple[float, ...]]:
        """Gauges by name from a step's figures; empty if none were read."""
        readings = figures[self.num_figures :]
        if not readings:
            return {}
        return self.tap.by_name(torch.tensor(readings).view(-1, len(self.tap.gauges)))

    def _backward(self, micro_loss: torch.Tensor) -> None:
        if self.loss_scale is not None:
            micro_loss = self.loss_scale.scale_loss(micro_loss)
        micro_loss.backward()

    def _loss(
        self,
        tokens_BT: torch.Tensor,
        targets_BT: torch.Tensor,
        read_gauges: bool,
        window: int | None,
    ) -> torch.Tensor:
        tokens_BT = to_device(tokens_BT, self.device)
        targets_BT = to_device(targets_BT, self.device)
        with autocast(self.device, self._precision):
            loss: torch.Tensor
            if not read_gauges:
                loss = self._forward(tokens_BT, targets_BT, window=window)
                self.compiles_next = False
                return loss
            # Gauge steps run uncompiled: a second compiled form would cost more than it saves.
            with self.tap.open_for_forward():
                loss = self.model(tokens_BT, targets_BT, tap=self.tap, window=window)
            return loss


def key_generators(key: int, device: torch.device) -> None:
    """Seed the host's generator and the device's, as `torch.manual_seed` would.

    That function also leaves word for accelerators that are not there, with a stack trace each
    time: 0.1 ms, at every micro-batch.
    """
    torch.default_generator.manual_seed(key)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(key)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to the device without waiting."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)


def autocast(device: torch.device, precision: PrecisionSection) -> AbstractContextManager[object]:
    """The precision policy of a forward pass."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision.compute == "bf16")
