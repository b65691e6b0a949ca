"""Which class of tensors grew, and which errors speak of memory."""

from pathlib import Path

import pytest
import torch

from fakes import FakeClock
from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.core.records import Decision
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.logbook.reading import read_journal
from longhaul.train.allocation_errors import (
    DEVICE,
    HOST,
    PINNED,
    TooMuchMeasured,
    refused_memory,
)
from longhaul.train.memory import PATH, RAN_OUT
from longhaul.train.out_of_memory import (
    Held,
    Shortage,
    fewer_sequences,
    reporting_in_own_file,
    within_step,
)
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
    assert refused_memory(error) is None


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
    return Shortage(8, 512, held, free_bytes=10, unused_bytes=0)


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


def recipe(*options: str) -> Recipe:
    return load_recipe("drill", ("batch.sequences=24", "batch.stages=[]", *options)).recipe


def ledger(who: str, value: int) -> LedgerState:
    data = {"path": PATH, "value": value, "old": None}
    made = Decision(kind="set", attempt=2, step=5, time=1.0, who=who, reason="", data=data)
    return fold(LedgerState(), made)


def test_half_as_many_at_most_and_a_divisor_of_every_batch_stage() -> None:
    asked = recipe("batch.micro_sequences=24")
    assert fewer_sequences(asked, LedgerState(), 5, 24)[0] == 12
    assert fewer_sequences(asked, LedgerState(), 5, 6)[0] == 3  # what a rank of four has
    assert fewer_sequences(asked, LedgerState(), 5, 5)[0] == 2
    stages = "batch.stages=[{from_step=9, sequences=9, sequence_length=64}]"
    staged = recipe("batch.micro_sequences=3", "batch.sequence_length=64", stages)
    assert fewer_sequences(staged, LedgerState(), 5, 3)[0] == 1


def test_one_sequence_cannot_be_halved() -> None:
    fewer, why = fewer_sequences(recipe("batch.micro_sequences=1"), LedgerState(), 5, 1)
    assert fewer is None
    assert "no smaller number" in why


def test_it_is_done_once() -> None:
    asked = recipe("batch.micro_sequences=8")
    assert fewer_sequences(asked, ledger("longhaul", 8), 5, 8)[0] == 4
    fewer, why = fewer_sequences(asked, ledger(RAN_OUT, 4), 5, 4)
    assert fewer is None
    assert why.startswith("4 at once are fewer than asked for")


def test_a_rank_without_a_logbook_leaves_its_word_in_the_journal(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.journal.mkdir()
    reporting_in_own_file(folder, 3, 2, FakeClock())(17, rank=2, next=4)
    [event] = read_journal(folder)
    assert (event.kind, event.attempt, event.step) == ("out-of-memory", 3, 17)
    assert event.data == {"rank": 2, "next": 4}
