"""The nearest orthogonal matrix, by matrix products alone.

Enters: a stack of equal shapes. Leaves: the same stack with singular values near 1.
Never knows: momentum, weights, rates.

Shape suffixes: N matrices of R rows and C columns.
"""

import torch
from torch import Tensor

# Keller Jordan's quintic (kellerjordan.github.io/posts/muon): steepest at 0 rather than exact, so
# that five rounds bring every singular value of a random matrix to between 0.7 and 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_EPS = 1e-7  # Only keeps a zero matrix zero.


def newton_schulz(stack_NRC: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Make each matrix orthogonal, its singular vectors kept.

    Args:
        stack_NRC: float32, of any scale.
        steps: rounds of x ← a·x + (b·x·xᵀ + c·(x·xᵀ)²)·x.
        dtype: format of the products; bfloat16 is precise enough, the result feeds them again.

    Returns:
        float32 [N, R, C]. A matrix of zeros stays one; NaN fills its own matrix.
    """
    a, b, c = COEFFICIENTS
    tall = stack_NRC.size(1) > stack_NRC.size(2)
    # The norm bounds the largest singular value by 1; in float32, where its square fits.
    norm_N11 = torch.linalg.vector_norm(stack_NRC, dim=(1, 2), keepdim=True)
    x = (stack_NRC / (norm_N11 + _EPS)).to(dtype)
    if tall:
        x = x.mT.contiguous()  # x·xᵀ of the smaller size
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        bent = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, bent, x, beta=a)
    orthogonal_NRC: Tensor = x.mT if tall else x
    return orthogonal_NRC.float()


def bf16_is_fast(device: torch.device) -> bool:
    """Whether a device multiplies matrices faster in bfloat16 than in float32."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "xpu"
