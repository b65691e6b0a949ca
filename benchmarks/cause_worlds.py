"""Small real runs in worlds where something is wrong, for `cause_matrix.py`.

A world is what a process computes in: a machine that may be faulty, software and kernels that may
be wrong. It is put around training and replays alike; the ladder is told nothing of it.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longhaul.core.clocks import RealClock, TimeBuckets
from longhaul.core.machine import fingerprint
from longhaul.core.output import View
from longhaul.core.records import StepRecord
from longhaul.data.batches import BatchReader
from longhaul.data.verification import text_for_training
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.lease import acquire
from longhaul.logbook.run_history import read_run_history
from longhaul.logbook.run_log import RunLog
from longhaul.logbook.run_spec import read_run_spec, resolve_spec, write_run_spec
from longhaul.model import attention
from longhaul.model.attention import Attention
from longhaul.model.head import SummedLoss
from longhaul.optim import update_rules as adamw_file
from longhaul.parallel.device import settle_torch, torch_facts
from longhaul.run.diagnose.bundle import load_bundle
from longhaul.run.diagnose.replays import replay_each, settled
from longhaul.run.diagnose.rerun import figures_text
from longhaul.run.train.attempt import Attempt
from longhaul.run.train.build import build_parts, saver_of
from longhaul.store.tiers import Tiers
from longhaul.train import passes as passes_file
from longhaul.train.trainer import Identity, Trainer

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


@dataclass(frozen=True)
class World:
    """What a process computes in; empty words are healthy."""

    machine: str = ""
    """`scale`, `flip`, `sporadic`: what comes of some matrix products."""
    kernel: str = ""
    """A fault of the attention that only the compiled or the bfloat16 form has."""
    software: str = ""
    """A fault of every form."""
    jitter: bool = False
    """Products differ in their last bits from time to time, as atomic sums do."""

    def honest(self) -> "World":
        """The same software on a sound machine."""
        return replace(self, machine="")

    def before(self) -> "World":
        """The software before, on the same machine."""
        return replace(self, software="")


class _Machine(TorchDispatchMode):
    """A device whose matrix products are not what they should be."""

    def __init__(self, fault: str, jitter: bool) -> None:
        super().__init__()
        self._fault, self._jitter = fault, jitter
        self._chance = random.Random()  # not torch's: a fault does not repeat with the seed

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if func._schema.name not in _PRODUCTS or out.numel() < 64:
            return out
        if self._jitter:
            out = out * (1 + 1e-7 * self._chance.choice((-1, 0, 1)))
        if self._fault == "scale" and out.size(-1) % 96 == 0:  # one unit of the device
            out = out * 1.3
        elif self._fault == "flip" and out.size(-1) % 96 == 0:
            flat = out.reshape(-1).clone()
            halves = flat.dtype != torch.float32
            flat.view(torch.int16 if halves else torch.int32)[-5] ^= 1 << (14 if halves else 30)
            out = flat.view(out.shape)
        elif self._fault == "sporadic" and self._chance.random() < 0.004:
            flat = out.reshape(-1).clone()
            flat[self._chance.randrange(flat.numel())] = 300.0
            out = flat.view(out.shape)
        return out


_in_fast_form = False


def _in_place_of_attention(gather: Callable[..., torch.Tensor]) -> Any:
    """Short sequences too, which would write it out."""
    return patch.multiple(Attention, _gather=gather, _is_plain=lambda *_: False)


def _wrong_gather(kind: str, always: bool) -> Callable[..., torch.Tensor]:
    right = Attention._gather

    def gather(self: Any, query: Any, key: Any, value: Any, view: Any) -> torch.Tensor:
        if not (always or _in_fast_form):
            return right(self, query, key, value, view)
        if kind == "future":
            return attention.functional.scaled_dot_product_attention(query, key, value)
        if kind == "shift":
            key = key.roll(1, dims=2)
        if kind == "scale":
            query = query * 2.5
        out = right(self, query, key, value, view)
        if kind == "head":
            out = torch.cat((out[:, :1] * 0, out[:, 1:]), dim=1)
        if kind == "backward" and out.requires_grad:
            out.register_hook(lambda gradient: 3.0 * gradient)
        return out

    return gather


@contextmanager
def _fast_form() -> Iterator[None]:
    global _in_fast_form
    before, _in_fast_form = _in_fast_form, True
    try:
        yield
    finally:
        _in_fast_form = before


def _compiled_wrongly(model: Any, **_: Any) -> Callable[..., torch.Tensor]:
    """Stands for torch.compile, whose compiler would take longer than a run here."""

    def forward(*arguments: Any, **named: Any) -> torch.Tensor:
        with _fast_form():
            return model(*arguments, **named)

    return forward


def _forward_of_half(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def wrapped(self: Any, *arguments: Any, **named: Any) -> torch.Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return forward(self, *arguments, **named)
        with _fast_form():
            return forward(self, *arguments, **named)

    return wrapped


@contextmanager
def living_in(world: World) -> Iterator[None]:
    """Compute in `world` while the body runs."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(passes_file, "compiled_by_shape", _compiled_wrongly))
        if world.kernel:
            stack.enter_context(_in_place_of_attention(_wrong_gather(world.kernel, always=False)))
            forward = _forward_of_half(Attention.forward)
            stack.enter_context(patch.object(Attention, "forward", forward))
        if world.software == "smoothing":
            right = SummedLoss.forward
            wrong = lambda loss, logits, *rest: right(loss, 0.8 * logits, *rest)  # noqa: E731
            stack.enter_context(patch.object(SummedLoss, "forward", wrong))
        elif world.software == "update":
            update = adamw_file.adamw
            larger = lambda *a, **k: update(*a, **{**k, "lr": 8 * k["lr"]})  # noqa: E731
            stack.enter_context(patch.object(adamw_file, "adamw", larger))
        elif world.software:
            stack.enter_context(_in_place_of_attention(_wrong_gather(world.software, always=True)))
        if world.machine or world.jitter:
            stack.enter_context(_Machine(world.machine, world.jitter))
        yield


@dataclass(frozen=True)
class Happening:
    """What befalls a run on its way."""

    begins: World = World()
    """Where it sets out."""
    at: int = 0
    """Updates made when it moves to `then`, or when something befalls it."""
    then: World | None = None
    only_once: bool = False
    """`then` lasts for one step."""
    corrupts: bool = False
    """A weight is overwritten in memory."""
    sets: tuple[tuple[str, Any], ...] = ()
    poison: tuple[tuple[int, ...], str] = ((), "")
    """Steps whose batches are poisoned, and with what."""


@contextmanager
def poisoned(steps: tuple[int, ...], kind: str, blocks: int) -> Iterator[None]:
    """The run's text holds garbage where these steps read it. In force for replays too."""
    right = BatchReader._read

    def read(self: Any, request: Any) -> Any:
        batch = right(self, request)
        if batch.draw // blocks + 1 not in steps:
            return batch
        chance = torch.Generator().manual_seed(batch.draw)
        shape = (batch.tokens_BT.size(0), batch.tokens_BT.size(1) + 1)
        if kind == "constant":
            window = torch.full(shape, 201)
        elif kind == "random":
            window = torch.randint(128, 250, shape, generator=chance)
        else:
            window = torch.arange(shape[1]).mul(37).remainder(90).add(140).expand(shape)
        tokens, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
        return replace(batch, tokens_BT=tokens, targets_BT=targets)

    with patch.object(BatchReader, "_read", read):
        yield


def train(room: Path, name: str, options: tuple[str, ...], happens: Happening) -> RunFolder:
    """Train a run as `longhaul train` does, without its judgement, which would end it early."""
    clock, view = RealClock(), View()
    folder = create_run(room / name, clock)
    write_run_spec(folder, resolve_spec("drill", options, None, room / "prepared"))
    device = torch.device("cpu")
    with acquire(folder, clock).keep() as lease, ExitStack() as worlds:
        history, time_buckets = read_run_history(folder), TimeBuckets(clock)
        run_log = RunLog(folder, lease, history, clock, time_buckets)
        asked = read_run_spec(folder)
        attempt = Attempt(
            asked.settings(), run_log, view, Tiers(asked.settings(), run_log, view.say)
        )
        dataset = text_for_training(folder, asked, view.say)
        settle_torch(attempt.recipe)
        worlds.enter_context(living_in(happens.begins))
        parts = build_parts(
            attempt.recipe, history.ledger, dataset, device, saver_of(attempt), time_buckets
        )
        run_log.open_segment(
            "start", attempt.recipe, step=0, draw=0, checkpoint=None,
            fingerprint=fingerprint(torch_facts(device)),
        )  # fmt: skip
        trainer = Trainer(attempt.recipe, run_log.ledger, parts, Identity(lease.attempt, "1.00", 0))
        for record in trainer.steps():
            run_log.append(record)
            if isinstance(record, StepRecord):
                _befall(record.step, happens, worlds, trainer, run_log)
        list(trainer.saved(wait=True))
        parts.batches.close()
        parts.saver.close()
        run_log.close()
    return folder


def _befall(
    step: int, happens: Happening, worlds: ExitStack, trainer: Trainer, run_log: RunLog
) -> None:
    if happens.then is not None and step in (happens.at, happens.at + 1):
        if step == happens.at:
            worlds.close()
            worlds.enter_context(living_in(happens.then))
        elif happens.only_once:
            worlds.close()
            worlds.enter_context(living_in(happens.begins))
    if step != happens.at:
        return
    if happens.corrupts:
        with torch.no_grad():
            trainer.training_step.model.blocks[1].attention.out.weight[3] += 40.0
    for path, value in happens.sets:
        data = {"path": path, "value": value, "old": None}
        trainer.apply(run_log.decide("set", step, data, who="someone", reason="a try"))


def serve() -> None:
    """Replay what is asked for, a line at a time: the other machine, or the other software."""
    for line in sys.stdin:
        asked = json.loads(line)
        bundles = tuple(load_bundle(Path(folder)) for folder in asked["folders"])
        device = torch.device("cpu")
        with settled(bundles[0].inputs[0].settings, 1, device), living_in(World(**asked["world"])):
            first, again = replay_each(bundles, device), replay_each(bundles, device)
        print(figures_text((first, again)), flush=True)


if __name__ == "__main__":
    serve()
