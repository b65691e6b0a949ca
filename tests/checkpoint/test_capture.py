from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from longhaul.checkpoint.capture import (
    StateMismatch,
    TrainingState,
    capture,
    check_same,
    describe,
    descriptions,
    hand_back,
)


class Part:
    def __init__(self, **tensors: Tensor) -> None:
        self.held, self.count = tensors, 0

    def tensors(self) -> Mapping[str, Tensor]:
        return self.held

    def facts(self) -> Mapping[str, Any]:
        return {"count": self.count}

    def take_back(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.held, self.count = dict(tensors), facts["count"]


def test_parts_get_back_their_own_share() -> None:
    parts = {"model": Part(w=torch.ones(2)), "model_b": Part(w=torch.zeros(3))}
    state = capture(parts)
    assert sorted(state.tensors) == ["model.w", "model_b.w"]
    assert state.tensors["model.w"] is parts["model"].held["w"]
    fresh = {"model": Part(), "model_b": Part()}
    hand_back(fresh, TrainingState(state.tensors, {"model": {"count": 4}, "model_b": {"count": 9}}))
    assert [part.count for part in fresh.values()] == [4, 9]
    assert list(fresh["model"].held) == ["w"]
    assert fresh["model_b"].held["w"].shape == (3,)


def test_nothing_is_taken_when_a_part_is_missing() -> None:
    parts = {"model": Part(), "scale": Part()}
    with pytest.raises(StateMismatch, match="lacks scale"):
        hand_back(parts, TrainingState({}, {"model": {"count": 4}}))
    assert parts["model"].count == 0


def saved(**shapes: list[int]) -> dict[str, str]:
    return {name: describe(torch.float32, shape) for name, shape in shapes.items()}


def test_every_difference_is_named_with_the_nearest_name() -> None:
    live = {"blocks_0_weight": torch.zeros(2), "head": torch.zeros(3), "norm": torch.zeros(1)}
    with pytest.raises(StateMismatch) as mismatch:
        check_same(saved(block_0_weight=[2], head=[4], norm=[1]), descriptions(live))
    message = mismatch.value.message
    assert "lacks blocks_0_weight (nearest: block_0_weight)" in message
    assert "nothing here takes block_0_weight" in message
    assert "head is float32 [4] in the checkpoint and float32 [3] here" in message
    assert "norm" not in message


def test_another_dtype_is_a_difference() -> None:
    with pytest.raises(StateMismatch, match=r"float32 \[2\] in the checkpoint and bfloat16 \[2\]"):
        check_same(saved(w=[2]), descriptions({"w": torch.zeros(2, dtype=torch.bfloat16)}))


def test_a_hundred_differences_stay_readable() -> None:
    live = {f"layer{number}": torch.zeros(1) for number in range(100)}
    with pytest.raises(StateMismatch, match="and 92 more") as mismatch:
        check_same({}, descriptions(live))
    assert len(mismatch.value.message) < 300
