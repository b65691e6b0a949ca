"""Which class of tensors grew, and which errors speak of memory."""

import pytest
import torch

from longhaul.train.out_of_memory import (
    Held,
    Shortage,
    TooMuchMeasured,
    is_out_of_memory,
    within_step,
)
from longhaul.train.step import TrainingStep


@pytest.mark.parametrize("error", [
    MemoryError(), TooMuchMeasured(2), torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
                 "allocate memory: you tried to allocate 4000000000000 bytes."),
])  # fmt: skip
def test_what_allocators_say_is_known(error: BaseException) -> None:
    assert is_out_of_memory(error)


def test_torchs_own_refusal_on_the_host_is_known() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)


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
