"""The position-wise MLP.

Enters: the normalised residual stream [B, T, D]. Leaves: the same shape.
Never knows: other positions.

Shape suffixes: B batch, T time, D width, F inner width.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from longhaul.config.model import ModelSection
from longhaul.model.lean import squared_relu
from longhaul.model.norms import make_norm
from longhaul.model.weights import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,  # arXiv 1606.08415
    "gelu_tanh": partial(
        functional.gelu, approximate="tanh"
    ),  # GPT-2's; "gelu_new" in transformers
    "relu": functional.relu,
    "relu2": squared_relu,
    "geglu": functional.gelu,  # arXiv 2002.05202, of the gate
    "swiglu": functional.silu,  # the same, with β = 1
}
"""Value of `model.activation` → the function; a gated MLP applies it to its gate."""


class MLP(nn.Module):
    """Widen, bend, narrow; gated, one half of the wide vector bends and multiplies the other."""

    def __init__(self, settings: ModelSection) -> None:
        super().__init__()
        inner = settings.inner_width
        self.activation = ACTIVATIONS[settings.activation]
        self.gated = settings.gated
        # Gated, one product for both halves: rows of the gate, then those of what it multiplies.
        parts = (inner, inner) if self.gated else (inner,)
        self.up = Linear(settings.width, sum(parts), settings.bias, parts=parts)
        self.inner_norm = make_norm(settings, inner) if settings.mlp_inner_norm else None
        self.down = Linear(
            inner,
            settings.width,
            settings.bias,
            writes_residual=True,
            zero=settings.zero_projections,
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Apply to every position alike."""
        if self.gated:
            gate_BTF, wide_BTF = self.up(x_BTD).chunk(2, dim=-1)
            inner_BTF = self.activation(gate_BTF) * wide_BTF
        else:
            inner_BTF = self.activation(self.up(x_BTD))
        if self.inner_norm is not None:
            inner_BTF = self.inner_norm(inner_BTF)
        out_BTD: Tensor = self.down(inner_BTF)
        return out_BTD
