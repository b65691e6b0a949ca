"""Which class of tensors grew, and which errors speak of memory."""

import pytest
import torch

from longhaul.train.allocation_errors import (
    DEVICE,
    HOST,
    PINNED,
    TooMuchMeasured,
    is_out_of_memory,
    refused_memory,
)
from longhaul.train.out_of_memory import Held, Shortage, within_step
from longhaul.train.step import TrainingStep

NOT_FROM_ITS_CACHE = (
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other "
    "API call, so the stacktrace below might be incorrect."
)


@pytest.mark.parametrize(("error", "memory"), [
    (MemoryError(), HOST), (TooMuchMeasured(2), HOST),
    (torch.OutOfMemoryError("CUDA out of memory."), DEVICE),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
                  "allocate memory: you tried to allocate 4000000000000 bytes."), HOST),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
     DEVICE),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), DEVICE),
    (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), DEVICE),
    (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"), HOST),
    (torch.AcceleratorError(NOT_FROM_ITS_CACHE), DEVICE),
    (RuntimeError("cudaErrorMemoryAllocation: out of memory"), DEVICE),
    (RuntimeError("NCCL Error 1: unhandled cuda error. Last error:\nCuda failure 2 "
                  "'out of memory'"), DEVICE),
    (RuntimeError("MPS backend out of memory (MPS allocated: 8.8 GiB)"), DEVICE),
])  # fmt: skip
def test_what_allocators_say_is_known_and_whose_memory_it_was(
    error: BaseException, memory: str
) -> None:
    assert is_out_of_memory(error)
    assert refused_memory(error) == memory


@pytest.mark.parametrize("how", ["a copy", "an empty tensor"])
def test_page_locked_memory_is_told_from_the_devices_of_which_the_driver_says_the_same(
    how: str,
) -> None:
    # Operations of torch leave no frame of Python behind, so ours is the innermost.
    def copies(tensor: torch.Tensor | None = None) -> None:
        if tensor is None:
            raise torch.AcceleratorError(NOT_FROM_ITS_CACHE)
        tensor.pin_memory()

    def empty(size: int = 0) -> None:
        if not size:
            raise torch.AcceleratorError(NOT_FROM_ITS_CACHE)
        torch.empty(size, dtype=torch.uint8, pin_memory=True)

    with pytest.raises(RuntimeError) as raised:
        (copies if how == "a copy" else empty)()
    assert refused_memory(raised.value) == PINNED


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of range")])
def test_other_errors_are_not(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_an_error_from_within_a_step_is_told_from_others() -> None:
    class Fails(TrainingStep):
        def __init__(self) -> None:
            pass

        def __call__(self, *given: object, **named: object) -> torch.Tensor:
            raise MemoryError

    def caught(body) -> BaseException:
        with pytest.raises(MemoryError) as raised:
            body()
        return raised.value

    def evaluation() -> None:
        raise MemoryError

    assert within_step(caught(Fails()))
    assert not within_step(caught(evaluation))


def shortage(*held: Held) -> Shortage:
    return Shortage(8, 512, held, free=10, unused=0)


def test_the_class_that_grew_most_is_named_with_its_figures() -> None:
    weights = Held("weights", 1_000_000, 1_000_000, "device")
    activations = Held("activations", 1_000_000, 3_000_000, "device")
    snapshots = Held("snapshots", 0, 1_500_000, "host")
    told = shortage(weights, activations, snapshots)
    assert told.grew is activations
    assert told.as_data()["grew"] == "activations"
    assert "activations grew most while 8 sequences of 512" in str(told)
    assert "weights 1 MB," in str(told)
    assert "activations 1 MB → 3 MB" in str(told)


def test_where_nothing_grew_somebody_else_took_the_memory() -> None:
    told = shortage(Held("weights", 5, 5, "device"), Held("snapshots", 9, 0, "host"))
    assert told.grew is None
    assert told.as_data()["grew"] is None
    assert "nothing of this run had grown" in str(told)
