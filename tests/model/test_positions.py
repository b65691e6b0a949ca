import math

import torch

from longhaul.config.model import ModelSection
from longhaul.model.positions import RotaryPositions, rotate


def rotary(context: int = 300, head_width: int = 8, base: float = 10_000.0) -> RotaryPositions:
    settings = ModelSection(layers=1, heads=1, width=head_width, context=context, rotary_base=base)
    positions = RotaryPositions(settings)
    positions.fill()
    return positions


def reference(x: list[float], position: int, base: float) -> list[float]:
    """RoFormer's equation 34 on plain floats, pairs (i, i + K/2)."""
    half = len(x) // 2
    out = [0.0] * len(x)
    for i in range(half):
        angle = position * base ** (-2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def test_rotation_equals_a_float64_reference():
    positions = rotary(base=500.0)
    x_BTHK = torch.randn(1, 300, 2, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate(x_BTHK, positions(300))
    for head in range(2):
        for position in (0, 1, 17, 299):
            expected = reference(x_BTHK[0, position, head].tolist(), position, 500.0)
            torch.testing.assert_close(
                turned[0, position, head].double(),
                torch.tensor(expected, dtype=torch.float64),
                atol=1e-5,
                rtol=0,
            )


def test_scores_depend_only_on_the_distance_between_positions():
    positions = rotary()
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    queries = rotate(query.expand(1, 300, 1, 8), positions(300))[0, :, 0]
    keys = rotate(key.expand(1, 300, 1, 8), positions(300))[0, :, 0]
    scores = queries @ keys.T
    for distance in (0, 3, 120):
        along = scores.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-4, rtol=1e-4)


def test_angles_stay_float32_when_the_model_is_bfloat16():
    positions = rotary(context=4096)
    x = torch.ones(1, 4096, 1, 8, dtype=torch.bfloat16)
    turned = rotate(x, positions(4096))
    assert turned.dtype == torch.bfloat16
    exact = rotate(x.float(), positions(4096))
    assert (turned.float() - exact).abs().max() < 0.01
