"""What a save and a rollback cost with 1B parameters, their moments included; and a start."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarks.common import Bar, at_most, figure, missing
from benchmarks.gpu import race
from benchmarks.gpu.setting import QUIET, NotMeasured, Outcome, Setting, code_cache
from benchmarks.quickstart import first_step_s
from benchmarks.save_stall import stall, state_of

if TYPE_CHECKING:
    from torch import Tensor

_RECIPE = "llama-1b"
_ROUNDS = 3
_GB = 1e9


def save(setting: Setting) -> Outcome:
    """How long a save keeps training waiting."""
    device = setting.device.type
    given = setting.options(_RECIPE, text=False)
    bars = stall(f"1B, {device}", _RECIPE, device, setting.pick(_ROUNDS, 2), given, setting.room)
    return Outcome(bars)


def rollback(setting: Setting) -> Outcome:
    """How long it takes to have an earlier state back, from the host's memory and from the disk."""
    from longhaul.checkpoint.capture import capture
    from longhaul.checkpoint.loader import load
    from longhaul.checkpoint.snapshots import SnapshotRing
    from longhaul.checkpoint.write import render_facts, write_checkpoint
    from longhaul.core.clocks import RealClock

    given = setting.options(_RECIPE, text=False)
    tensors = state_of(_RECIPE, setting.device.type, given)[0].tensors
    parts = {name: _Part(tensors, name) for name in ("model", "optimizer")}
    state = capture(parts)
    size = sum(tensor.nbytes for tensor in tensors.values())
    bars: list[Bar] = []
    ring = SnapshotRing(int(4.5 * size) + 1, most=2)
    taken = [_seconds(setting, lambda n=n: ring.take(n, n, state)) for n in (1, 2, 3)]
    if not ring.kept():
        bars.append(missing("rollback from memory", "the host has no room for two snapshots"))
    else:
        back = [_seconds(setting, lambda: ring.hand_back(3, lambda _: parts)) for _ in range(3)]
        bars += [
            figure("rollback from memory", min(back), "s", f"{size / _GB:.1f} GB, checked first"),
            figure("a snapshot keeps the device for", taken[-1], "s", "into a buffer made before"),
        ]
    ring.clear()
    folder = setting.room / "checkpoints"
    folder.mkdir()
    host = {name: tensor.cpu() for name, tensor in tensors.items()}
    stages = write_checkpoint(
        folder, step=1, attempt=1, tensors=host, pieces={}, clock=RealClock(),
        facts=render_facts(1, 1, state.facts), still_owner=lambda: True,
    )  # fmt: skip
    assert [stage for stage, _, _ in stages][-1] == "verified"
    del host
    (path,) = (p for p in folder.iterdir() if p.is_dir() and p.name.startswith("step-"))
    seconds = _seconds(setting, lambda: load(path, state))
    bars.append(figure("rollback from disk", seconds, "s", "every file's hash compared first"))
    return Outcome(bars)


class _Part:
    """Of the training state: gives its live tensors, and takes them back by being filled."""

    def __init__(self, tensors: "Mapping[str, Tensor]", name: str) -> None:
        named = tensors.items()
        self._own = {n.removeprefix(f"{name}."): t for n, t in named if n.startswith(f"{name}.")}

    def tensors(self) -> "Mapping[str, Tensor]":
        return self._own

    def facts(self) -> Mapping[str, object]:
        return {}

    def take_back(self, tensors: object, facts: object) -> None:
        return


def start(setting: Setting) -> Outcome:
    """From the start of the command to the end of its first step, compile cache cold and warm."""
    recipe, cache = "gpt2-124m", setting.room / "compiled"
    settings = [*race.cut(setting.recipe(recipe), 3), *QUIET]
    setting.dataset(setting.recipe(recipe))
    found = {}
    for way in ("cold", "warm"):
        folder = setting.train(recipe, *settings, run=way, **code_cache(cache))
        found[way] = first_step_s(folder)
    compiled = setting.pick("compile cache", "nothing compiled: compile cache")
    return Outcome(
        [
            figure(f"start to first step, {compiled} cold", found["cold"], "s"),
            figure(f"start to first step, {compiled} warm", found["warm"], "s"),
            at_most("warm over cold", found["warm"] / found["cold"], "×", 1.0),
        ],
        found,
    )


def text(setting: Setting) -> Outcome:
    """Prepares the text that the other parts train on."""
    began = time.monotonic()
    dataset = setting.dataset(setting.recipe("gpt2-124m"))
    seconds = time.monotonic() - began
    if not dataset.num_tokens:
        raise NotMeasured("the text has no tokens")
    return Outcome(
        [
            figure("tokens of text", dataset.num_tokens, "tokens"),
            figure("to prepare or find it", seconds, "s"),
        ]
    )


def _seconds(setting: Setting, body: Callable[[], object]) -> float:
    import torch

    on_gpu = setting.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    body()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - began
