"""The gradient noise scale: the batch, in tokens, beyond which more data a step stops paying.

Enters: norms of the gradients of a small batch and of a large one that holds it. Leaves: an
estimate on the device. Never knows: where the gradients come from.
"""

import torch
from torch import Tensor

from longhaul.model.tap import Gauge
from longhaul.monitor.weights import ABSENT

NOISE_SCALE = Gauge(
    "noise_scale",
    "token",
    "mean",
    "model",
    "gradient noise scale (arXiv 1812.06162, appendix A.1), from the first micro-batch and the "
    "whole batch: a batch far below it gains from growing, one far above it does not; present "
    "when gradients are accumulated and the estimate is positive. One reading may be wrong by a "
    "factor of several: take the median of many",
)


def noise_scale(
    small_norm: Tensor, small_tokens: int, large_norm: Tensor, large_tokens: int
) -> Tensor:
    """tr(Σ) / |G|² from two gradients, `ABSENT` if the noise hides the one or the other.

    Both are estimated without bias (appendix A.1), and are differences of noisy numbers:
    |G|² comes out negative about as often as not when the batch is far below the noise scale.

    Args:
        small_norm: of the mean gradient over `small_tokens` targets.
        small_tokens: fewer than `large_tokens`.
        large_norm: of the mean gradient over `large_tokens` targets.
        large_tokens: the small batch among them.
    """
    small, large = small_norm.square(), large_norm.square()
    signal = (large_tokens * large - small_tokens * small) / (large_tokens - small_tokens)
    noise = (small - large) / (1 / small_tokens - 1 / large_tokens)
    return torch.where((signal > 0) & (noise > 0), noise / signal, ABSENT)
