"""Which errors mean that memory ran out, and whose memory it was."""

from types import TracebackType

import torch

DEVICE, HOST, PINNED = "device memory", "host memory", "page-locked host memory"
_SAID = {
    # c10/core/CPUAllocator and alloc_cpu.cpp, the operating system, the C++ library.
    "can't allocate memory": HOST,
    "not enough memory": HOST,
    "Cannot allocate memory": HOST,
    "bad_alloc": HOST,
    # Of cuBLAS, cuBLASLt, cuSOLVER, cuSPARSE, cuDNN: their handles and workspaces.
    "_STATUS_ALLOC_FAILED": DEVICE,
    "_DEVICE_ALLOCATION_FAILED": DEVICE,
    "_HOST_ALLOCATION_FAILED": HOST,
    "CUDA out of memory": DEVICE,
    "HIP out of memory": DEVICE,
    "MPS backend out of memory": DEVICE,
    # The driver's own word, of what does not come from torch's allocator: page-locked memory, a
    # context, a library such as NCCL.
    "CUDA error: out of memory": DEVICE,
    "CUDA driver error: out of memory": DEVICE,
    "HIP error: out of memory": DEVICE,
    "cudaErrorMemoryAllocation": DEVICE,
    "CUDA_ERROR_OUT_OF_MEMORY": DEVICE,
    "Cuda failure 2 'out of memory'": DEVICE,
    "Cuda failure 'out of memory'": DEVICE,
}
_OF_THE_DRIVER = "out of memory", "cudaErrorMemoryAllocation"
_PINS = "pin_memory"


class TooMuchMeasured(MemoryError):
    """A rank ran out of memory while several measured together how much fits; the others wait for
    it in collectives of the same pass, so none of them can go on.
    """

    def __init__(self, sequences: int) -> None:
        super().__init__(f"out of memory while measuring {sequences} sequences")
        self.sequences = sequences


class TooMuchEvaluated(MemoryError):
    """Memory ran out in an evaluation, in a pass that cannot be made again with fewer sequences."""

    def __init__(self, sequences: int, said: str) -> None:
        super().__init__(said)
        self.sequences = sequences


def refused_memory(error: BaseException) -> str | None:
    """The memory that was refused: `DEVICE`, `HOST` or `PINNED`; None if it was none."""
    if isinstance(error, torch.OutOfMemoryError):
        return DEVICE
    if isinstance(error, TooMuchEvaluated | TooMuchMeasured) and error.__cause__ is not None:
        return refused_memory(error.__cause__)
    if isinstance(error, MemoryError):
        return HOST
    if not isinstance(error, RuntimeError):
        return None
    said = str(error)
    memory = next((memory for words, memory in _SAID.items() if words in said), None)
    by_driver = memory == DEVICE and any(words in said for words in _OF_THE_DRIVER)
    return PINNED if by_driver and _pinned(error.__traceback__) else memory


def _pinned(trace: TracebackType | None) -> bool:
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    named = [names for names in code.co_consts if isinstance(names, tuple)]
    return _PINS in code.co_names or any(_PINS in names for names in named)
