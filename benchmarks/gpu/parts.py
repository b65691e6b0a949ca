"""The parts, in the order in which one may need another's figures."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu import peers, race, safety, state, steps, switches
from benchmarks.gpu.setting import Outcome, Setting


@dataclass(frozen=True)
class Part:
    """One thing to measure."""

    title: str
    measure: Callable[[Setting], Outcome]


def _mfu(recipe: str, shape: str, overrides: tuple[str, ...] = ()) -> Callable[[Setting], Outcome]:
    return partial(steps.mfu, recipe=recipe, shape=shape, overrides=overrides)


PARTS = {
    "product": Part("The best bf16 matrix product", steps.product),
    "text": Part("The text of all parts", state.text),
    "mfu-gpt2": Part("MFU of gpt2-124m", _mfu("gpt2-124m", "gpt2-124m")),
    "mfu-speedrun": Part("MFU of speedrun-124m", _mfu("speedrun-124m", "speedrun-124m")),
    "mfu-1b": Part("MFU of llama-1b", _mfu("llama-1b", "1B")),
    "mfu-3b": Part("MFU of a Llama of 3B", _mfu("llama-1b", "3B", steps.LLAMA_3B)),
    "float8": Part("Products in float8 at 1B", switches.float8),
    "gauges": Part("A step that reads gauges", switches.gauges),
    "head": Part("Output product and loss in chunks", switches.head),
    "graphs": Part("CUDA graphs", switches.graphs),
    "attention": Part("Kernels of attention", switches.attention),
    "nanogpt": Part("Tokens/s against nanoGPT", peers.nanogpt),
    "race-gpt2": Part("The baseline of the race to a loss: gpt2-124m", race.baseline),
    "race-speedrun": Part("speedrun-124m to gpt2-124m's loss", race.speedrun),
    "modded": Part("speedrun-124m against modded-nanogpt", peers.modded),
    "safety": Part("What safety costs", safety.safety),
    "save": Part("A save at 1B", state.save),
    "rollback": Part("A rollback at 1B", state.rollback),
    "overnight": Part("overnight-3090 on its card", steps.overnight),
    "start": Part("Start to first step", state.start),
}
