"""Memory that computing takes, measured on the device at hand, and the micro-batch that follows.

The micro-batch for `batch.micro_sequences = "auto"` is found once by passes that leave the training
state as it is, and halved once after a rank ran out of memory; the ledger keeps it until the recipe
has its own. Sequences of an evaluation are halved as often as ranks run out in one together.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longhaul.config.recipe import Recipe
from longhaul.core.machine import available_memory
from longhaul.core.output import Say
from longhaul.core.records import Event
from longhaul.core.units import Bytes, short_bytes
from longhaul.logbook.run_log import RunLog
from longhaul.parallel.world import World
from longhaul.train.allocation_errors import TooMuchMeasured, refused_memory
from longhaul.train.micro_batch import Budget, Found, find_micro_sequences
from longhaul.train.parts import Parts
from longhaul.train.step import TrainingStep

# Of the free memory of a GPU: the rest is for the update's own tensors, libraries' workspaces, and
# what a caching allocator cannot join together.
_SHARE_OF_GPU = 0.9
# A CPU computes a larger micro-batch no faster, and the memory is somebody's laptop.
_SHARE_OF_HOST = 0.25
_TOO_MUCH: Bytes = 1 << 62
"""Of what a device ran out of memory with."""
NO_LIMIT = 1 << 40
"""No number of sequences is known to be too many."""


def fitting_micro_sequences(
    step: TrainingStep, recipe: Recipe, ranks: World | None = None, below: int = NO_LIMIT
) -> Found:
    """The largest micro-batch that this device computes within its memory.

    Measured by real passes at the run's longest sequences, as gauge steps compute them (on a CPU
    always uncompiled, which takes no less), and by the pass of an evaluation. Of several `ranks`
    the one with the least room decides. As many sequences as `below` are known to be too many. The
    training state keeps every byte.

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
            if on_gpu and step.passes.compilations is not None:
                step.rehearse(sequences, length)  # to compile takes memory of its own, once
            taken = max(
                peak_of(lambda: step.rehearse(sequences, length), step.device),
                peak_of(lambda: step.rehearse_evaluation(evaluated, context), step.device),
            )
        except (RuntimeError, MemoryError) as error:
            if refused_memory(error) is None:
                raise
            if ranks is not None:
                raise TooMuchMeasured(sequences) from error
            taken = _TOO_MUCH
        taken = taken if ranks is None else ranks.control.highest(taken)
        return None if taken == _TOO_MUCH else taken

    if on_gpu:
        measure(1)  # libraries take their workspaces at the first pass, and keep them
    longest = max((s.weights for s in recipe.model.ahead_stages), key=len, default=())
    step.model.ahead = step.passes.forms.ahead = longest
    budget = _budget(step.device)
    share = 1 if ranks is None else ranks.data_size
    sizes = [-(-stage.sequences // share) for stage in recipe.batch_stages()]
    if ranks is not None:
        if not on_gpu:  # the processes of a host have one memory
            budget = replace(budget, limit=budget.limit // ranks.local_size)
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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


PATH = "batch.micro_sequences"
EVALUATION = "evaluation.sequences"
_WHO = "longhaul"
"""Signs what was found; a decision of anybody else is left alone."""
RAN_OUT = "out-of-memory"
"""Signs what was made smaller because it did not fit."""


def settle_micro_batch(recipe: Recipe, run_log: RunLog, parts: Parts, say: Say) -> None:
    """See to it that the micro-batch in force is a number that fits before the first step is made.

    What was found stays, whatever memory this start finds: another micro-batch gives other bits. A
    number in the recipe is newer and ends it; `auto` after that takes it up again. Where an earlier
    attempt ran out of memory, and nothing was decided since, half of what it computed holds.

    Raises:
        NeedsPerson: not even one sequence fits.
        TooMuchMeasured: a rank ran out of memory while several measured.
        LedgerError: the decision could not be written.
    """
    _settle(recipe, run_log, parts, say)
    if parts.ranks is not None:
        parts.ranks.control.first_number(0)


def measure_as_ordered(recipe: Recipe, parts: Parts, ranks: World) -> None:
    """Measure with rank 0, if it has to; TooMuchMeasured if this rank ran out of memory."""
    while below := ranks.control.first_number(0):
        fitting_micro_sequences(parts.step, recipe, ranks, below)


def _settle(recipe: Recipe, run_log: RunLog, parts: Parts, say: Say) -> None:
    asked, step = recipe.batch.micro_sequences, parts.progress.position.step

    def decide(kind: str, reason: str, who: str, path: str = PATH, **data: object) -> None:
        run_log.decide(kind, step, {"path": path, **data}, who=who, reason=reason)

    # Where ranks share their passes, one that runs out of memory in an evaluation cannot make its
    # pass again while the others stand in the middle of it: this attempt evaluates half as many.
    if fewer := _shortages(run_log, EVALUATION):
        value, reason = _fewest(fewer)
        decide("set", reason, RAN_OUT, EVALUATION, value=value, old=recipe.evaluation.sequences)
        say(f"evaluation: {value} sequences at once; {reason}")
    in_force = run_log.ledger.override_at(PATH, step)
    if in_force is not None and in_force.who in (_WHO, RAN_OUT):
        answers_this = in_force.who == RAN_OUT and in_force.old == asked
        if asked != "auto" and not answers_this:
            wanted = "the whole batch" if asked is None else asked
            decide("unset", f"the recipe asks for {wanted} now", _WHO, old=in_force.value)
            return
    if fewer := [event for event in _shortages(run_log, PATH) if event.data["asked"] == asked]:
        (value, reason), who = _fewest(fewer), RAN_OUT
    elif asked == "auto" and in_force is None:
        value, reason, who = _found(recipe, run_log, parts)
    else:
        return
    decide("set", reason, who, value=value, old=asked)
    sizes = dict.fromkeys(stage.sequences for stage in recipe.batch_stages())
    said = ", then ".join(map(str, sizes))
    say(f"micro-batch: {value} sequences of {said} at once; {reason}")


def _shortages(run_log: RunLog, path: str) -> list[Event]:
    """Those that ask this attempt to compute fewer sequences at once."""
    asking = (event for event in run_log.history.out_of_memory if event.data.get("next"))
    return [event for event in asking if event.data.get("path", PATH) == path]


def _fewest(shortages: Sequence[Event]) -> tuple[int, str]:
    return min((event.data["next"], str(event.data["message"])) for event in shortages)


def _found(recipe: Recipe, run_log: RunLog, parts: Parts) -> tuple[int, str, str]:
    """What was found earlier or is now; its reason, and who signs it."""
    earlier = run_log.ledger.withdrawn.get(PATH)
    if earlier is not None and earlier.who in (_WHO, RAN_OUT):
        return earlier.value, earlier.reason, earlier.who
    # Half of what a rank ran out of memory with is tried next: each size would cost a start.
    measured = [event.data.get("measured") for event in run_log.history.out_of_memory]
    below = min((size // 2 + 1 for size in measured if size), default=NO_LIMIT)
    if parts.ranks is not None:
        parts.ranks.control.first_number(below)
    found = fitting_micro_sequences(parts.step, recipe, parts.ranks, below)
    return found.sequences, found.reason, _WHO
