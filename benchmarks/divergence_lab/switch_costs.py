"""What the switches of `yalm-stable` cost in time.

One process makes steps of recipe `yalm-stable`, all switches on, with a switch and without it, in
turn (for float32 islands in bfloat16 weights). The learning rate is 0: both go on computing with
the same ordinary numbers. Time is that of the processor, on one thread, as neighbours on the
machine lengthen only the clock's.

On a CPU large tensors come from the operating system anew in each step, and are filled with zeros
by it; a switch that needs more of them pays for that most of all. A GPU's allocator keeps what was
freed. So islands are timed once more with an allocator that does, and after that their parts.

Enters: nothing. Leaves: ratios of times. Never knows: what a switch is good for.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from benchmarks.common import Bar, Ratio, interleaved, missing, paired_ratio
from benchmarks.divergence_lab import tables
from benchmarks.divergence_lab.switches import EXTRAS, ISLANDS, SWITCHES, merged
from torch import Tensor
from torch.nn import functional

from longhaul.config.load import load_recipe, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.data.batches import Batch
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build, to_number_format
from longhaul.model.layers import Norm
from longhaul.model.weights import Linear
from longhaul.optim.update_rules import build_optimizer
from longhaul.train.step import TrainingStep

ISLANDS_BAR = 0.02
_BAR_SLACK = 0.02
"""On a CPU pairs of identical programs differ by as much (DESIGN, benchmarks)."""
_ROUNDS = 15
_ROUNDS_OF_ISLANDS = 41
"""They have a bar, and cost less than one round differs from the next."""
_STEPS = 4
"""Timed together."""
_SEQUENCES = 4
_VOCABULARY = 4096
_BAR_NAME = "time of a step: "
_KEPT = "freed memory kept"
# glibc's numbers of what mallopt sets.
_TRIM_THRESHOLD, _MOST_MAPPED = -1, -4

Prepare = Callable[[GPT], None]
"""Changes a model before its first step."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a step with something over the time without."""

    name: str
    ratio: Ratio | None
    """None: it could not be measured."""


def measure() -> list[Cost]:
    """Each switch; then, with freed memory kept, islands again and what they are made of."""
    torch.set_num_threads(1)
    base, every = _all_on()
    costs = []
    for switch in (*SWITCHES, *EXTRAS, ISLANDS):
        on = {k: every.get(k, v) if v == "half" else v for k, v in switch.on.items()}
        costs.append(_cost(
            switch.name,
            _timed(with_overrides(base, every | on)),
            _timed(with_overrides(base, every | dict(switch.off))),
        ))  # fmt: skip
    again = f"{ISLANDS.name}, {_KEPT}"
    if not keep_freed_memory():
        return [*costs, Cost(again, None)]
    on, off = (with_overrides(base, every | dict(form)) for form in (ISLANDS.on, ISLANDS.off))
    costs.append(_cost(again, _timed(on), _timed(off)))
    costs.append(_cost("float32 norms alone", _timed(on, _only_norms), _timed(off)))
    costs.append(_cost("float32 residual stream alone", _timed(on, _only_stream), _timed(off)))
    costs.append(_cost("float32 loss, which is always on", _timed(on), _timed(on, _loss_in_half)))
    return costs


def _all_on() -> tuple[Recipe, dict[str, Any]]:
    """The recipe, and what turns all of its switches on."""
    base = load_recipe("yalm-stable").recipe
    every = merged(switch.on for switch in SWITCHES)
    every["model.embedding_width"] = base.model.embedding_width
    return base, every


def _cost(name: str, with_it: Callable[[], float], without: Callable[[], float]) -> Cost:
    print(f"cost of {name}", flush=True)
    rounds = _ROUNDS_OF_ISLANDS if name.startswith(ISLANDS.name) else _ROUNDS
    times = interleaved(rounds, {"with": with_it, "without": without})
    return Cost(name, paired_ratio(times["with"], times["without"]))


def _timed(recipe: Recipe, prepare: Prepare | None = None) -> Callable[[], float]:
    """A function that makes a few steps on random tokens and gives their seconds."""
    model = build(recipe.model, _VOCABULARY, recipe.seed)
    to_number_format(model, recipe.precision)
    if prepare is not None:
        prepare(model)
    step = TrainingStep(
        model, build_optimizer(model, recipe.optim), torch.device("cpu"), recipe.precision,
        recipe.seed,
    )  # fmt: skip
    length = recipe.model.context
    window_BT = torch.randint(
        _VOCABULARY, (_SEQUENCES, length + 1), generator=torch.Generator().manual_seed(0)
    )
    batch = Batch(window_BT[:, :-1], window_BT[:, 1:], _SEQUENCES * length, 0, _SEQUENCES)

    def seconds() -> float:
        began = time.process_time()
        for _ in range(_STEPS):
            step(batch, _SEQUENCES, 0.0, False)
        return time.process_time() - began

    seconds()
    return seconds


def keep_freed_memory() -> bool:
    """Let the C library keep for later what is freed, until this process ends; False if it is not
    glibc's.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    return bool(set_option(_MOST_MAPPED, 0)) and bool(set_option(_TRIM_THRESHOLD, -1))


def _only_norms(model: GPT) -> None:
    """Norms compute in float32; the stream between them is bfloat16."""
    model.widens = False
    for module in model.modules():
        if isinstance(module, Linear):
            module.narrows = False
        elif isinstance(module, Norm):
            module.register_forward_hook(lambda module, given, out: out.bfloat16())


def _only_stream(model: GPT) -> None:
    """The stream is float32; norms read it in bfloat16."""
    for module in model.modules():
        if isinstance(module, Norm):
            module.widens = False
            module.to(torch.bfloat16)
            module.register_forward_pre_hook(lambda module, given: (given[0].bfloat16(),))
    if model.embedding_norm is not None:  # it writes the stream
        model.embedding_norm.register_forward_hook(lambda module, given, out: out.float())


def _loss_in_half(model: GPT) -> None:
    """Logits go into the loss as they are, not widened."""
    model.forward = partial(_half_loss, model)  # type: ignore[method-assign]


def _half_loss(model: GPT, tokens_BT: Tensor, targets_BT: Tensor, window: int | None) -> Tensor:
    read_BTD = model._before_head(model._transformed(tokens_BT, None, window, None))
    logits_BTV = model._logits(read_BTD)
    losses_N = functional.cross_entropy(
        logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="none"
    )
    return losses_N.float().sum()


def table(costs: list[Cost]) -> tables.Rows:
    """One row a cost."""
    rows: tables.Rows = [("what", "time of a step with it over without")]
    for cost in costs:
        rows.append((cost.name, "not measured" if cost.ratio is None else f"{cost.ratio:.3f}"))
    return rows


def bars(costs: list[Cost]) -> list[Bar]:
    """All of them; islands are held against their bar as users have them."""
    if not costs:
        return [missing(_BAR_NAME + ISLANDS.name, "not timed", 1 + ISLANDS_BAR)]
    return [_bar(cost) for cost in costs]


def _bar(cost: Cost) -> Bar:
    name = _BAR_NAME + cost.name
    if cost.ratio is None:
        return missing(name, "not glibc: nothing to set")
    of_islands = cost.name.startswith(ISLANDS.name)
    bar = 1 + ISLANDS_BAR if of_islands else None
    met = cost.ratio.high <= 1 + ISLANDS_BAR + _BAR_SLACK if of_islands else None
    return Bar(name, cost.ratio.mean, "×", bar, met, format(cost.ratio, ".3f"))
