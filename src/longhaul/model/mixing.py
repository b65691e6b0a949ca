"""Learned sums of what a model computed before.

Enters: the residual stream and an earlier state of it. Leaves: their mixture, same shape.
Never knows: attention, MLPs.

Shape suffixes: B batch, T time, D width.
"""

from torch import Tensor

from longhaul.model.weights import Scalars


class InputMix(Scalars):
    """A block's reading: a share of the stream and one of the embedded input (modded-nanogpt).

    It begins as the stream alone.
    """

    def __init__(self) -> None:
        super().__init__((1.0, 0.0))

    def forward(self, x_BTD: Tensor, input_BTD: Tensor) -> Tensor:
        """Mix."""
        return self.weight[0] * x_BTD + self.weight[1] * input_BTD


class Skips(Scalars):
    """Connections from the first half's blocks to the second's, last to first (modded-nanogpt,
    2024-11-10, after arXiv 1505.04597).

    Of L layers, the last ⌊L/2⌋ get the outputs of the first ⌊L/2⌋, each times a learned factor
    that begins at 1; a middle layer gets none. Without a middle layer, the first of the second
    half reads the output of the block before it twice, as in the source.
    """

    def __init__(self, layers: int) -> None:
        super().__init__((1.0,) * (layers // 2))
        self._second_start = layers - layers // 2

    def forward(self, layer: int, x_BTD: Tensor, kept: list[Tensor]) -> Tensor:
        """What block `layer` reads.

        Args:
            layer: 0 for the first block; blocks come in order.
            x_BTD: the output of the block before.
            kept: outputs that wait for their block; empty at first, changed here.
        """
        if 1 <= layer <= len(self.start):
            kept.append(x_BTD)
        if layer < self._second_start:
            return x_BTD
        return x_BTD + self.weight[layer - self._second_start] * kept.pop()
