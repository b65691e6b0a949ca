from collections.abc import Callable

import pytest
import torch

from longhaul.checkpoint.host_buffers import Staging


def fill(staging: Staging, tensors: dict[str, torch.Tensor]) -> None:
    staging.begin(tensors)
    staging.copy()


def test_the_copy_has_the_same_bits_and_a_life_of_its_own(
    tensors: dict, same_bits: Callable
) -> None:
    staging = Staging()
    fill(staging, tensors)
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.detach().zero_()
    same_bits(staging.filled(), before)
    assert all(tensor.is_contiguous() for tensor in staging.filled().values())
    assert not any(tensor.requires_grad for tensor in staging.filled().values())


def test_buffers_are_allocated_once(tensors: dict) -> None:
    staging = Staging()
    fill(staging, tensors)
    first = {name: tensor.data_ptr() for name, tensor in staging.filled().items()}
    for _ in range(50):
        fill(staging, tensors)
    assert first == {name: tensor.data_ptr() for name, tensor in staging.filled().items()}


def test_buffers_follow_a_change_of_shape_dtype_or_names() -> None:
    staging = Staging()
    fill(staging, {"a": torch.ones(3), "b": torch.ones(2), "c": torch.ones(1)})
    fill(staging, {"a": torch.ones(4), "b": torch.ones(2).int()})
    filled = staging.filled()
    assert {name: (len(t), t.dtype) for name, t in filled.items()} == {
        "a": (4, torch.float32),
        "b": (2, torch.int32),
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_copy_from_a_gpu_is_ahead_of_later_work() -> None:
    live = torch.arange(1 << 22, device="cuda")
    staging = Staging()
    fill(staging, {"w": live})
    live.zero_()
    assert torch.equal(staging.filled()["w"], torch.arange(1 << 22))
    assert staging.filled()["w"].is_pinned()


def test_large_tensors_of_any_layout_and_dtype_are_copied_bit_by_bit() -> None:
    many = torch.randint(0, 1 << 30, (3, 1 << 20), dtype=torch.int32)
    live = {
        "slices": many,
        "turned": many.t(),
        "half": torch.randn(1 << 22).bfloat16(),
        "none": torch.empty(0),
        "one": torch.tensor(float("nan")),
    }
    staging = Staging()
    for _ in range(2):
        many.add_(1)
        fill(staging, live)
        expected = {name: tensor.clone() for name, tensor in live.items()}
        many.zero_()
        for name, tensor in staging.filled().items():
            assert torch.equal(tensor, expected[name]) or name == "one", name
        assert staging.filled()["one"].isnan()
    staging.release()
