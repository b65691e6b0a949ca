"""Memory that computing takes, measured on the device at hand."""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longhaul.config.recipe import Recipe
from longhaul.core.machine import available_memory
from longhaul.core.units import Bytes, short_bytes
from longhaul.parallel.world import Ranks
from longhaul.train.allocation_errors import TooMuchMeasured, is_out_of_memory
from longhaul.train.micro_batch import Budget, Found, find_micro_sequences
from longhaul.train.step import TrainingStep

# Of the free memory of a GPU: the rest is for the update's own tensors, libraries' workspaces, and
# what a caching allocator cannot join together.
_SHARE_OF_GPU = 0.9
# A CPU does not compute a larger micro-batch faster, its caches hold less of it, and the memory
# is somebody's laptop.
_SHARE_OF_HOST = 0.25
_TOO_MUCH: Bytes = 1 << 62
"""Of what a device ran out of memory with."""
NO_LIMIT = 1 << 40
"""No number of sequences is known to be too many."""


def fitting_micro_sequences(
    step: TrainingStep, recipe: Recipe, ranks: Ranks | None = None, below: int = NO_LIMIT
) -> Found:
    """The largest micro-batch that this device computes within its memory.

    Measured by real passes at the run's longest sequences, uncompiled, as gauge steps are, and by
    the pass of an evaluation. Of several `ranks` the one with the least room decides. As many
    sequences as `below` are known to be too many. The training state keeps every byte.

    Raises:
        NeedsPerson: not even one sequence fits.
        TooMuchMeasured: this rank ran out of memory, of several, which wait for it in the same
            pass; all must begin again, with `below`.
    """
    length, context = recipe.block_length(), recipe.model.context
    on_gpu = step.device.type == "cuda"

    def measure(sequences: int) -> Bytes | None:
        if sequences >= below:
            return None
        evaluated = recipe.evaluated_within(sequences * length)
        try:
            taken = max(
                peak_of(lambda: step.rehearse(sequences, length), step.device),
                peak_of(lambda: step.rehearse_evaluation(evaluated, context), step.device),
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if ranks is not None:
                raise TooMuchMeasured(sequences) from error
            taken = _TOO_MUCH
        taken = taken if ranks is None else ranks.control.highest(taken)
        return None if taken == _TOO_MUCH else taken

    if on_gpu:
        measure(1)  # libraries take their workspaces at the first pass, and keep them
    budget = _budget(step.device)
    share = 1 if ranks is None else ranks.world.data_size
    sizes = [-(-stage.sequences // share) for stage in recipe.batch_stages()]
    if ranks is not None:
        if not on_gpu:  # the processes of a host have one memory
            budget = replace(budget, limit=budget.limit // ranks.world.local_size)
        budget = replace(budget, limit=-ranks.control.highest(-budget.limit))
    try:
        return find_micro_sequences(sizes, measure, budget)
    finally:
        if on_gpu:
            torch.cuda.empty_cache()


def _budget(device: torch.device) -> Budget:
    if device.type != "cuda":
        free = available_memory()
        said = f"a quarter of the {short_bytes(free)} available on the host"
        return Budget(int(_SHARE_OF_HOST * free), said, tried_out=False)
    free, _ = torch.cuda.mem_get_info(device)
    # What the allocator holds without using it is free to us.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    said = f"{_SHARE_OF_GPU:.0%} of the {short_bytes(free)} free on the device"
    return Budget(int(_SHARE_OF_GPU * free), said, tried_out=True)


def peak_of(body: Callable[[], object], device: torch.device) -> Bytes:
    """Most bytes that the body holds at once, beyond those that were held before it."""
    if device.type != "cuda":
        live: LiveBytes = LiveBytes()
        with live:
            body()
        return live.peak
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    body()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class LiveBytes(TorchDispatchMode):
    """Follows every tensor that operations of this thread allocate, until it is freed. Resident
    memory also holds what the allocator kept from before. What kernels allocate within is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: Bytes = 0
        self.peak: Bytes = 0
        """Most bytes alive at any one time."""
        self._followed: dict[int, Bytes] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation; its results that share no memory with its arguments are new."""
        result = func(*args, **(kwargs or {}))
        given = _storages((args, kwargs))
        for number, storage in _storages(result).items():
            if number not in given and number not in self._followed:
                self._follow(number, storage)
        return result

    def _follow(self, number: int, storage: torch.UntypedStorage) -> None:
        self._followed[number] = storage.nbytes()
        weakref.finalize(storage, self._freed, number).atexit = False
        self.now += self._followed[number]
        self.peak = max(self.peak, self.now)

    def _freed(self, number: int) -> None:
        self.now -= self._followed.pop(number)


def _storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    """By identity: torch gives the same object for the same memory while that lives."""
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return {id(storage): storage for storage in (t.untyped_storage() for t in tensors)}
