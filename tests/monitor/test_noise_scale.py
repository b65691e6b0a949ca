import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longhaul.monitor.gauges import noise_scale
from longhaul.monitor.weights import ABSENT

positive = st.floats(1e-2, 1e3)


def estimate(small_square: float, small: int, large_square: float, large: int) -> float:
    norms = (torch.tensor(math.sqrt(square)) for square in (small_square, large_square))
    small_norm, large_norm = norms
    return float(noise_scale(small_norm, small, large_norm, large))


@given(signal=positive, noise=positive, small=st.integers(1, 100), times=st.integers(2, 50))
def test_expected_norms_give_the_noise_scale_back(signal, noise, small, times):
    """E|G_B|² = |G|² + tr(Σ)/B (arXiv 1812.06162, appendix A.1)."""
    large = small * times
    wanted = noise / signal
    found = estimate(signal + noise / small, small, signal + noise / large, large)
    if 0.01 < wanted / large < 100:  # beyond, float32 cannot tell the two norms apart
        assert found == pytest.approx(wanted, rel=0.02)


def test_per_token_gradients_with_known_noise_are_read_right_on_average():
    """Gradients g + ε in 50 dimensions: |G|² = 50·0.09, tr(Σ) = 50."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(200):
        tokens = 0.3 + torch.randn(64, 50, generator=generator)
        small, large = tokens[:8].mean(dim=0).norm(), tokens.mean(dim=0).norm()
        found.append(float(noise_scale(small, 8, large, 64)))
    assert torch.tensor(found).median().item() == pytest.approx(1 / 0.09, rel=0.2)


@pytest.mark.parametrize(
    ("small", "large"),
    [(1.0, 2.0), (100.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0)],
)
def test_nothing_is_said_where_noise_hides_the_signal_or_gradients_are_broken(small, large):
    assert estimate(small, 1, large, 2) == ABSENT
