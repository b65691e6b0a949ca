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
# Columns over rows beyond which five rounds on x·xᵀ take fewer multiplications than on x.
_WIDE = 1.5
# A round multiplies a rounding error of x·xᵀ by up to 12; after these, 1e-7 is still small.
_ROUNDS_OF_A_GRAM = 5


def newton_schulz(stack_NRC: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Make each matrix orthogonal, its singular vectors kept.

    Args:
        stack_NRC: float32, of any scale.
        steps: rounds of x ← a·x + (b·x·xᵀ + c·(x·xᵀ)²)·x.
        dtype: format of the products; bfloat16 is precise enough, the result feeds them again.

    Returns:
        float32 [N, R, C]. A matrix of zeros stays one; NaN fills its own matrix.
    """
    tall = stack_NRC.size(1) > stack_NRC.size(2)
    # The norm bounds the largest singular value by 1; in float32, where its square fits.
    norm_N11 = torch.linalg.vector_norm(stack_NRC, dim=(1, 2), keepdim=True)
    x = (stack_NRC / (norm_N11 + _EPS)).to(dtype)
    if tall:
        x = x.mT.contiguous()  # x·xᵀ of the smaller size
    # Half precision loses too much in x·xᵀ to go on from it (Dao and others, 2026).
    if dtype == torch.float32 and x.size(2) > _WIDE * x.size(1):
        for begin in range(0, steps, _ROUNDS_OF_A_GRAM):
            x = _rounds_on_gram(x, min(_ROUNDS_OF_A_GRAM, steps - begin))
    else:
        x = _rounds(x, steps)
    orthogonal_NRC: Tensor = x.mT if tall else x
    return orthogonal_NRC.float()


def _rounds(x: Tensor, count: int) -> Tensor:
    a, b, c = COEFFICIENTS
    for _ in range(count):
        gram = torch.bmm(x, x.mT)
        bent = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, bent, x, beta=a)
    return x


def _rounds_on_gram(x: Tensor, count: int) -> Tensor:
    """The same rounds on the small x·xᵀ alone; x is multiplied once, by all of them together
    (Gram Newton-Schulz, dao-lab.ai/blog/2026/gram-newton-schulz).
    """
    a, b, c = COEFFICIENTS
    gram = torch.bmm(x, x.mT)
    together = None
    for number in range(count):
        bent = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        bent.diagonal(dim1=1, dim2=2).add_(a)
        together = bent if together is None else torch.bmm(bent, together)
        if number + 1 < count:
            gram = torch.bmm(bent, torch.bmm(gram, bent))
    return x if together is None else torch.bmm(together, x)


def bf16_is_fast(device: torch.device) -> bool:
    """Whether a device multiplies matrices faster in bfloat16 than in float32."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "xpu"
