"""What a forward pass carries from block to block beside the residual stream.

Enters: what the whole model knows before its first block. Leaves: the same, read by blocks; the
first block's attention leaves its values in it. Never knows: weights.

Shape suffixes: B batch, T time, D width, J heads of keys and values, K head width.
"""

from torch import Tensor

from longhaul.model.cache import KeyValueCache
from longhaul.model.masks import Sight
from longhaul.model.positions import Rotation
from longhaul.model.tap import Tap


class Carry:
    """One forward pass.

    Not a dataclass: layers that share one must see what another has left in it, and FSDP hands
    each layer a copy of any dataclass that it is called with.

    Args:
        sight: what each position may attend to, by layer.
        rotation: angles of the positions, if they are rotary.
        tap: where gauges are written while it is open.
        cache: keys and values of positions computed before, when text is written token by token.
        input_BTD: the embedded input, for `model.input_mix`.
        clamp: largest magnitude of the residual stream; 0 for any.
        first_value_BTJK: the first layer's values, for `model.value_residual`; that layer sets it.
    """

    __slots__ = ("cache", "clamp", "first_value_BTJK", "input_BTD", "rotation", "sight", "tap")

    def __init__(
        self,
        sight: Sight,
        rotation: Rotation | None = None,
        tap: Tap | None = None,
        cache: KeyValueCache | None = None,
        input_BTD: Tensor | None = None,
        clamp: float = 0.0,
        first_value_BTJK: Tensor | None = None,
    ) -> None:
        self.sight = sight
        self.rotation = rotation
        self.tap = tap
        self.cache = cache
        self.input_BTD = input_BTD
        self.clamp = clamp
        self.first_value_BTJK = first_value_BTJK
