import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from longhaul.optim.muon import COEFFICIENTS, POLAR_EXPRESS, bf16_is_fast, newton_schulz


@hypothesis_settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 24), columns=st.integers(1, 24),
    scale=st.floats(1e-4, 1e6), seed=st.integers(0, 99),
)  # fmt: skip
def test_singular_values_come_near_one_and_their_vectors_stay(rows, columns, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    small = min(rows, columns)
    left = torch.linalg.qr(torch.randn(rows, small, generator=generator))[0]
    right = torch.linalg.qr(torch.randn(columns, small, generator=generator))[0]
    matrix = scale * left @ torch.diag(torch.linspace(0.3, 1.0, small)) @ right.mT
    result = newton_schulz(matrix[None], 5, torch.float32)[0]
    values = torch.diagonal(left.mT @ result @ right)
    assert values.min() > 0.6
    assert values.max() < 1.3
    rest = result - left @ torch.diag(values) @ right.mT
    assert rest.abs().max() < 2e-3


def test_it_depends_on_direction_only_and_not_on_its_neighbours_in_the_stack():
    stack = torch.randn(3, 6, 9, generator=torch.Generator().manual_seed(0))
    alone = newton_schulz(stack[1:2], 5, torch.float32)[0]
    together = newton_schulz(
        stack * torch.tensor([5.0, 100.0, 1e-3])[:, None, None], 5, torch.float32
    )
    torch.testing.assert_close(together[1], alone, rtol=1e-3, atol=1e-3)


def test_a_tall_matrix_is_treated_as_its_transpose():
    stack = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0))
    tall = newton_schulz(stack, 5, torch.float32)
    torch.testing.assert_close(tall, newton_schulz(stack.mT, 5, torch.float32).mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_zeros_stay_zeros_and_nan_spoils_only_its_own_matrix(dtype):
    stack = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    stack[0], stack[1, 2, 2] = 0.0, torch.nan
    result = newton_schulz(stack, 5, dtype)
    assert result.dtype == torch.float32
    assert torch.equal(result[0], torch.zeros(4, 4))
    assert result[1].isnan().all()
    assert result[2].isfinite().all()


@pytest.mark.parametrize("steps", [1, 4, 5, 6, 12, 20])
@pytest.mark.parametrize("smallest", [1.0, 1e-3])
def test_a_wide_matrix_is_rounded_as_often_as_a_square_one(steps, smallest):
    """Through x·xᵀ or not: the same polynomial of every singular value, the tiny ones too."""
    generator = torch.Generator().manual_seed(steps)
    left = torch.linalg.qr(torch.randn(64, 64, generator=generator).double())[0]
    right = torch.linalg.qr(torch.randn(256, 64, generator=generator).double())[0]
    values = torch.linspace(smallest, 1.0, 64).double()
    expected = values / values.norm()
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        expected = a * expected + b * expected**3 + c * expected**5
    wide = (left @ torch.diag(values) @ right.mT).float()
    result = newton_schulz(wide[None], steps, torch.float32)[0].double()
    torch.testing.assert_close(result, left @ torch.diag(expected) @ right.mT, rtol=0.0, atol=1e-4)


def spread(polar_express: bool, steps: int, shape: tuple[int, int] = (64, 64)) -> float:
    """How far singular values are from 1 at most, in Gaussian matrices."""
    stack = torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))
    done = newton_schulz(stack, steps, torch.float32, polar_express)
    return float((torch.linalg.svdvals(done.double()) - 1).abs().max())


def test_polar_express_comes_nearer_to_one_and_nearer_with_each_round():
    assert spread(True, 5, (64, 160)) < spread(False, 5, (64, 160))
    assert spread(True, 12) < 0.02 < spread(True, 6) < spread(True, 4) < 1


def test_polar_express_is_the_same_on_a_gram_matrix():
    stack = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(0))
    wide = newton_schulz(stack, 6, torch.float32, True)
    scaled = stack.double() / torch.linalg.vector_norm(stack.double(), dim=(1, 2), keepdim=True)
    left, values, right = torch.linalg.svd(scaled, full_matrices=False)
    for a, b, c in POLAR_EXPRESS[:6]:
        values = values / 1.01
        values = a * values + b * values**3 + c * values**5
    torch.testing.assert_close(
        wide.double(), left @ torch.diag_embed(values) @ right, rtol=0.0, atol=1e-4
    )


def test_bf16_is_near_float32():
    stack = torch.randn(2, 16, 24, generator=torch.Generator().manual_seed(0))
    exact, rough = (newton_schulz(stack, 5, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert (exact - rough).norm() < 0.05 * exact.norm()


def test_every_device_answers_whether_bf16_is_fast():
    assert bf16_is_fast(torch.device("cpu")) in (True, False)
    assert not bf16_is_fast(torch.device("mps"))
