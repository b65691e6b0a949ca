"""What a forward pass carries from block to block beside the residual stream.

Shape suffixes: B batch, T (new) positions, S positions so far (S = past + T), D width, J heads of
keys and values, K head width.
"""

import torch
from torch import Tensor

from longhaul.config.model import ModelSection
from longhaul.model.embedding import Rotation
from longhaul.model.masks import Sight
from longhaul.model.tap import Tap


class KeyValueCache:
    """Keys and values of a whole context, filled from the front, of sequences written side by side.
    A forward pass that is given new positions calls `see` once and `extend` once a layer.
    """

    def __init__(
        self,
        settings: ModelSection,
        batch: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        layers, context = settings.layers, settings.context
        shape = (layers, batch, settings.key_heads, context, settings.key_width)
        self._key_LBJSK = torch.empty(shape, device=device, dtype=dtype)
        self._value_LBJSK = torch.empty(shape, device=device, dtype=dtype)
        self._tokens_BS = torch.empty((batch, context), device=device, dtype=torch.int64)
        self._filled = [0] * layers

    @property
    def length(self) -> int:
        """Positions that every layer holds."""
        return min(self._filled)

    def see(self, tokens_BT: Tensor) -> Tensor:
        """Remember the tokens of the pass that begins, once or again; all so far, with these."""
        end = self.length + tokens_BT.size(1)
        self._tokens_BS[:, self.length : end] = tokens_BT
        return self._tokens_BS[:, :end]

    def extend(self, layer: int, key_BJTK: Tensor, value_BJTK: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's keys and values; give those of all positions, [B, J, S, K]."""
        start = self._filled[layer]
        end = start + key_BJTK.size(2)
        key_BJSK, value_BJSK = self._key_LBJSK[layer], self._value_LBJSK[layer]
        key_BJSK[:, :, start:end] = key_BJTK
        value_BJSK[:, :, start:end] = value_BJTK
        self._filled[layer] = end
        # The caller's dtype: under autocast it is not the weights'.
        return (
            key_BJSK[:, :, :end].to(key_BJTK.dtype),
            value_BJSK[:, :, :end].to(value_BJTK.dtype),
        )


class Carry:
    """One forward pass.

    Not a dataclass: layers that share one must see what another has left in it, and FSDP hands each
    layer a copy of any dataclass that it is called with.

    `sight`: what each position may attend to, by layer. `input_BTD`: the embedded input, for
    `model.input_mix`. `clamp`: largest magnitude of the residual stream; 0 for any.
    `first_value_BTJK`: the first layer's values, for `model.value_residual`; that layer sets it.
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
