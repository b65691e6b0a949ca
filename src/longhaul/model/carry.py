"""What a forward pass carries from block to block beside the residual stream.

Enters: what the whole model knows before its first block. Leaves: the same, read by blocks; the
first block's attention leaves its values in it. Never knows: weights.

Shape suffixes: B batch, T time, D width, J heads of keys and values, K head width.
"""

from dataclasses import dataclass

from torch import Tensor

from longhaul.model.cache import KeyValueCache
from longhaul.model.masks import Sight
from longhaul.model.positions import Rotation
from longhaul.model.tap import Tap


@dataclass(slots=True)
class Carry:
    """One forward pass."""

    sight: Sight
    """What each position may attend to, by layer."""
    rotation: Rotation | None = None
    """Angles of the positions, if they are rotary."""
    tap: Tap | None = None
    """Where gauges are written while it is open."""
    cache: KeyValueCache | None = None
    """Keys and values of positions computed before, when text is written token by token."""
    input_BTD: Tensor | None = None
    """The embedded input, for `model.input_mix`."""
    clamp: float = 0.0
    """Largest magnitude of the residual stream; 0 for any."""
    first_value_BTJK: Tensor | None = None
    """The first layer's values, for `model.value_residual`; set by that layer."""
