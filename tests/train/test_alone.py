"""One process pays nothing for what many need."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from longhaul.config.load import load_recipe
from longhaul.config.size import shrunken
from longhaul.data.batches import Batch
from longhaul.model.initialise import build
from longhaul.optim import muon
from longhaul.optim.update_rules import build_optimizer
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

# Operations of the second step, without gauges and with them, on a CPU under torch 2.13. They are
# those counted before longhaul knew of more than one process, less what was saved since (8 in a
# step with gauges, and what LAMB did to read a number at each update). Another torch splits them
# differently.
BEFORE = {
    ("opt-125m", "adamw"): (767, 1460),
    ("opt-125m", "muon"): (940, 1604),
    ("opt-125m", "lamb"): (970, 1663),
    ("opt-125m", "sgdw"): (771, 1350),
    ("llama-1b", "adamw"): (668, 1240),
    ("llama-1b", "muon"): (894, 1437),
    ("llama-1b", "lamb"): (806, 1378),
    ("llama-1b", "sgdw"): (670, 1164),
}


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.of[str(func)] += 1
        return func(*args, **(kwargs or {}))


def counted(name: str, optimizer: str) -> tuple[Count, Count]:
    twin = shrunken(load_recipe(name).recipe)
    # The formats are pinned: what is fastest on this processor would change the count.
    overrides = ("model.layers=2", f'optim.name="{optimizer}"', 'precision.compute="float32"',
                 'optim.muon.newton_schulz="bf16"')  # fmt: skip
    recipe = load_recipe(name, [*twin, *overrides]).recipe
    model = build(recipe.model, 131, 1, end_of_text=0)
    optim = build_optimizer(model, recipe.optim)
    step = TrainingStep(model, optim, torch.device("cpu"), recipe.precision, 1)
    window = torch.randint(131, (4, 33), generator=torch.Generator().manual_seed(0))
    batch = Batch(window[:, :-1], window[:, 1:], 128, 0, 1)
    step(batch, 2, 1e-3, False)
    counts = Count(), Count()
    for count, read_gauges in zip(counts, (False, True), strict=True):
        with count:
            step(batch, 2, 1e-3, read_gauges)
    return counts


@pytest.mark.parametrize(("name", "optimizer"), list(BEFORE))
def test_a_step_of_one_process_does_what_it_did_before_there_were_many(
    name: str, optimizer: str
) -> None:
    plain, with_gauges = counted(name, optimizer)
    assert not [op for op in plain.of | with_gauges.of if "c10d" in op]
    assert not torch.distributed.is_initialized()
    if torch.__version__.startswith("2.13"):
        totals = plain.of.total(), with_gauges.of.total()
        assert totals == BEFORE[name, optimizer]
    if optimizer != "lamb":  # whose counters of steps are host scalars on a CPU
        assert not plain.of["aten._local_scalar_dense.default"]


@pytest.mark.parametrize("name", ["opt-125m", "llama-1b"])
def test_what_is_counted_is_no_matter_of_the_processor(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Muon takes the format that is fast: with bf16 there are casts beside its products."""
    counts = []
    for is_fast in (True, False):
        monkeypatch.setattr(muon, "bf16_is_fast", lambda device, is_fast=is_fast: is_fast)
        counts.append([count.of.total() for count in counted(name, "muon")])
    assert counts[0] == counts[1]


def test_around_its_step_one_process_does_what_it_did_before(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    off = ("batch.stages=[]", "evaluation.interval_steps=0", "checkpoint.interval_steps=0")
    gauges = ("monitor.gauge_interval_steps=0", "checkpoint.snapshot_interval_steps=0")
    steps, count = make_trainer(*off, *gauges).steps(), Count()
    honest = TrainingStep.__call__

    def uncounted(self: TrainingStep, *given: Any) -> torch.Tensor:
        with _disable_current_modes():
            return honest(self, *given)

    next(steps)
    monkeypatch.setattr(TrainingStep, "__call__", uncounted)
    with count:
        for _ in range(4):
            next(steps)
    # Tokens and targets of each batch are views of what was read; counted before, too.
    assert count.of == {"aten.lift_fresh.default": 8, "aten.slice.Tensor": 8}


def test_one_process_does_not_import_what_shards() -> None:
    code = "import sys, longhaul.train.trainer; print('torch.distributed.fsdp' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
