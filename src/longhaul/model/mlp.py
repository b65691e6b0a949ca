"""The position-wise MLP.

Enters: the normalised residual stream [B, T, D]. Leaves: the same shape.
Never knows: other positions.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from longhaul.config.model import ModelSection
from longhaul.model.weights import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,  # arXiv 1606.08415
    "gelu_tanh": partial(
        functional.gelu, approximate="tanh"
    ),  # GPT-2's; "gelu_new" in transformers
    "relu": functional.relu,
}
"""Value of `model.activation` → the function."""


class MLP(nn.Module):
    """Widen, bend, narrow."""

    def __init__(self, settings: ModelSection) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[settings.activation]
        self.up = Linear(settings.width, settings.inner_width, settings.bias)
        self.down = Linear(
            settings.inner_width, settings.width, settings.bias, writes_residual=True
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Apply to every position alike."""
        out_BTD: Tensor = self.down(self.activation(self.up(x_BTD)))
        return out_BTD
