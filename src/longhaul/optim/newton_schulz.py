"""The nearest orthogonal matrix, by matrix products alone.

Enters: a stack of equal shapes. Leaves: the same stack with singular values near 1.
Never knows: momentum, weights, rates.

Shape suffixes: N matrices of R rows and C columns.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# Keller Jordan's quintic (kellerjordan.github.io/posts/muon): steepest at 0 rather than exact, so
# that five rounds bring every singular value of a random matrix to between 0.7 and 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Polar Express (Amsel and others, 2025, arXiv 2505.16932, algorithm 1): for each round the quintic
# that leaves the least error, from singular values of 1e-3 on; the last one for all that follow.
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
_SAFETY = 1.01  # Rounding must not carry a singular value beyond what a round was made for.
_Round = tuple[float, float, float]
_EPS = 1e-7  # Only keeps a zero matrix zero.
# Columns over rows beyond which five rounds on x·xᵀ take fewer multiplications than on x.
_WIDE = 1.5
# A round multiplies a rounding error of x·xᵀ by up to 12, or 17 and 68; after these, 1e-7 is still
# small.
_ROUNDS_OF_A_GRAM = 5


def newton_schulz(
    stack_NRC: Tensor, steps: int, dtype: torch.dtype, polar_express: bool = False
) -> Tensor:
    """Make each matrix orthogonal, its singular vectors kept.

    Args:
        stack_NRC: float32, of any scale.
        steps: rounds of x ← a·x + (b·x·xᵀ + c·(x·xᵀ)²)·x.
        dtype: format of the products; bfloat16 is precise enough, the result feeds them again.
        polar_express: a, b and c of their own for each round, so that fewer do.

    Returns:
        float32 [N, R, C]. A matrix of zeros stays one; NaN fills its own matrix.
    """
    tall = stack_NRC.size(1) > stack_NRC.size(2)
    # The norm bounds the largest singular value by 1; in float32, where its square fits.
    norm_N11 = torch.linalg.vector_norm(stack_NRC, dim=(1, 2), keepdim=True)
    x = (stack_NRC / (norm_N11 + _EPS)).to(dtype)
    if tall:
        x = x.mT.contiguous()  # x·xᵀ of the smaller size
    rounds = _polar_express(steps) if polar_express else [COEFFICIENTS] * steps
    # Half precision loses too much in x·xᵀ to go on from it (Dao and others, 2026).
    if dtype == torch.float32 and x.size(2) > _WIDE * x.size(1):
        for begin in range(0, steps, _ROUNDS_OF_A_GRAM):
            x = _rounds_on_gram(x, rounds[begin : begin + _ROUNDS_OF_A_GRAM])
    else:
        x = _rounds(x, rounds)
    orthogonal_NRC: Tensor = x.mT if tall else x
    return orthogonal_NRC.float()


def _polar_express(steps: int) -> list[_Round]:
    last = len(POLAR_EXPRESS) - 1
    found = [POLAR_EXPRESS[min(number, last)] for number in range(steps)]
    return [(a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in found]


def _rounds(x: Tensor, rounds: Sequence[_Round]) -> Tensor:
    for a, b, c in rounds:
        gram = torch.bmm(x, x.mT)
        bent = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, bent, x, beta=a)
    return x


def _rounds_on_gram(x: Tensor, rounds: Sequence[_Round]) -> Tensor:
    """The same rounds on the small x·xᵀ alone; x is multiplied once, by all of them together
    (Gram Newton-Schulz, dao-lab.ai/blog/2026/gram-newton-schulz).
    """
    gram = torch.bmm(x, x.mT)
    together = None
    for number, (a, b, c) in enumerate(rounds, start=1):
        bent = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        bent.diagonal(dim1=1, dim2=2).add_(a)
        together = bent if together is None else torch.bmm(bent, together)
        if number < len(rounds):
            gram = torch.bmm(bent, torch.bmm(gram, bent))
    return x if together is None else torch.bmm(together, x)


def bf16_is_fast(device: torch.device) -> bool:
    """Whether a device multiplies matrices faster in bfloat16 than in float32."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "xpu"
