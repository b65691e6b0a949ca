from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.core.schedules import Shape, learning_rate_factor

SHAPES: list[Shape] = ["constant", "cosine", "linear", "wsd"]


def factor(step: int, shape: Shape, warmup: int = 10, end: int = 100, final: float = 0.1) -> float:
    return learning_rate_factor(
        step, shape=shape, warmup_steps=warmup, decay_steps=end, final_fraction=final,
        cooldown_steps=30,
    )  # fmt: skip


@given(step=st.integers(0, 300), shape=st.sampled_from(SHAPES), warmup=st.integers(0, 99))
def test_a_factor_is_always_between_nothing_and_the_peak(
    step: int, shape: Shape, warmup: int
) -> None:
    assert 0 < factor(step, shape, warmup) <= 1


@pytest.mark.parametrize("shape", SHAPES)
def test_the_rate_rises_to_its_peak_and_never_rises_again(shape: Shape) -> None:
    rates = [factor(step, shape) for step in range(120)]
    assert all(a < b for a, b in pairwise(rates[:11]))
    assert rates[10] == 1
    assert all(a >= b for a, b in pairwise(rates[10:]))


@pytest.mark.parametrize("shape", ["cosine", "linear", "wsd"])
def test_a_decay_ends_where_it_should_and_stays_there(shape: Shape) -> None:
    assert factor(99, shape) > 0.1
    assert factor(100, shape) == factor(10_000, shape) == 0.1


def test_cosine_is_half_way_down_in_the_middle() -> None:
    assert factor(55, "cosine") == pytest.approx(0.55)


def test_wsd_is_flat_until_its_cooldown_and_half_way_down_in_its_middle() -> None:
    assert factor(70, "wsd") == 1
    assert factor(85, "wsd") == pytest.approx(0.55)
