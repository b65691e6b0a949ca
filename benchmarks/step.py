"""The bare step of a recipe on the device at hand: tokens/s, MFU, peak memory.

    python benchmarks/step.py RECIPE [--small] [--set batch.micro_sequences=8]

Eager and compiled (where a compiler exists), in every precision that the device has, each case in
a process of its own. The text is random tokens: data, journal and evaluation have no part in it.
On a GPU this is the first thing to run. MFU is PaLM's (DESIGN rule 16) over the vendor's dense
peak of the dtype; where that is not known (any CPU), the product of two large matrices measured
in the same process stands beside it as a ceiling.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from common import Bar, figure, missing, write_results

if TYPE_CHECKING:
    from longhaul.config.recipe import Recipe
    from longhaul.data.batches import Batch
    from longhaul.train.step import TrainingStep

VOCABULARY = 50_257


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("--small", action="store_true", help="the recipe's small twin")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each case")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(given)))
        return
    results: list[Bar] = []
    for precision in precisions():
        for form in ("eager", "compiled"):
            name = f"{precision}, {form}"
            if form == "compiled" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
                results.append(missing(name, "no C++ compiler"))
                continue
            results += case(given, precision, form, name)
    label = given.recipe.rsplit("/", 1)[-1].removesuffix(".toml")
    write_results(
        f"step-{label}{'-small' if given.small else ''}", results, "python " + " ".join(sys.argv)
    )


def case(given: argparse.Namespace, precision: str, form: str, name: str) -> list[Bar]:
    print(f"measuring {name}", flush=True)
    ended = subprocess.run(
        [sys.executable, *sys.argv, "--case", f"{precision},{form}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        reason = (ended.stderr.strip().splitlines() or ["no word"])[-1]
        return [missing(name, reason[:120])]
    got = json.loads(ended.stdout.splitlines()[-1])
    mfu = got["mfu"]
    return [
        figure(f"{name}: tokens/s", got["tokens_per_s"], "tokens/s",
               f"{got['step_ms']:.1f} ms a step, the first {got['first_s']:.1f} s"),
        figure(f"{name}: MFU", 100 * mfu, "%") if mfu is not None
        else missing(f"{name}: MFU", f"peak of {got['device']} is not known"),
        figure(f"{name}: share of a large matrix product", 100 * got["of_ceiling"], "%",
               f"ceiling {got['ceiling_tflops']:.3g} TFLOP/s"),
        figure(f"{name}: peak memory", got["peak_mb"], "MB"),
    ]  # fmt: skip


def precisions() -> tuple[str, ...]:
    """Those that the device computes in; a CPU takes 400 times as long for products in fp16."""
    import torch

    everywhere = ("float32", "bf16", "bf16_weights")
    return (*everywhere, "fp16_weights") if torch.cuda.is_available() else everywhere


def measure(given: argparse.Namespace) -> dict[str, object]:
    import torch

    from longhaul.config.load import load_recipe
    from longhaul.config.size import model_size, shrunken
    from longhaul.monitor.throughput import mfu

    precision, form = given.case.split(",")
    twin = shrunken(load_recipe(given.recipe).recipe) if given.small else ()
    options = [*twin, *given.set, f'precision.compute="{precision}"']
    recipe = load_recipe(given.recipe, options).recipe
    vocabulary = vocabulary_of(recipe)
    step, batch = bare_step(recipe, compiled=form == "compiled")
    device, (sequences, length) = step.device, batch.tokens_BT.shape

    def once() -> float:
        began = time.perf_counter()
        step(batch, sequences, recipe.optim.lr, read_gauges=False)[0].item()  # waits
        return time.perf_counter() - began

    first = once()
    for _ in range(3):
        once()
    seconds = statistics.median(once() for _ in range(given.steps))
    flops_per_token = model_size(recipe.model, vocabulary).flops_per_token(length)
    flops, tokens_per_s = flops_per_token * sequences * length, sequences * length / seconds
    ceiling = largest_product(device, precision)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "tokens_per_s": tokens_per_s,
        "step_ms": seconds * 1e3,
        "first_s": first,
        "mfu": mfu(tokens_per_s, flops_per_token, known_peak(device, precision)),
        "of_ceiling": flops / seconds / ceiling,
        "ceiling_tflops": ceiling / 1e12,
        "peak_mb": torch.cuda.max_memory_allocated(device) / 1e6
        if device.type == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def vocabulary_of(recipe: "Recipe") -> int:
    """Tokens of the recipe's tokenizer; GPT-2's where only the prepared text would tell."""
    tokenizer = recipe.tokenizer
    known = {"characters": 65, "bytes": 257}.get(tokenizer.kind)
    return tokenizer.vocab_size or known or VOCABULARY


def bare_step(recipe: "Recipe", compiled: bool) -> "tuple[TrainingStep, Batch]":
    """A fresh model's step, and a micro-batch of random tokens.

    One micro-batch a step: accumulation repeats it and adds nothing to learn.
    """
    import torch

    from longhaul.data.batches import Batch
    from longhaul.model.initialise import build, to_half
    from longhaul.optim.gate import LossScale
    from longhaul.optim.update_rules import build_optimizer
    from longhaul.parallel.device import choose_device, settle_torch
    from longhaul.train.memory import fitting_micro_sequences
    from longhaul.train.step import TrainingStep

    settle_torch(recipe)
    device, vocabulary = choose_device(recipe.machine.device), vocabulary_of(recipe)
    end_of_text = vocabulary - 1 if recipe.model.document_mask else None
    model = build(recipe.model, vocabulary, recipe.seed, device, end_of_text)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision.half_weights or "")
    if half is not None:
        to_half(model, half, recipe.precision.islands)
    scale = LossScale(recipe.optim.loss_scale, device) if half == torch.float16 else None
    step = TrainingStep(
        model, build_optimizer(model, recipe.optim), device, recipe.precision, recipe.seed,
        loss_scale=scale, compiled=compiled, sources=("random tokens",),
    )  # fmt: skip
    length = recipe.batch_at(0).sequence_length
    if recipe.batch.micro_sequences == "auto":
        sequences = fitting_micro_sequences(step, recipe).sequences
    else:
        sequences = recipe.micro_sequences(0)
    generator = torch.Generator().manual_seed(0)
    window_BT = torch.randint(vocabulary, (sequences, length + 1), generator=generator)
    source_B = torch.zeros(sequences, dtype=torch.int64)
    tokens_BT, targets_BT = window_BT[:, :-1], window_BT[:, 1:]
    return step, Batch(tokens_BT, targets_BT, targets_BT.numel(), 0, sequences, source_B)


def known_peak(device: object, precision: str) -> float | None:
    import torch

    from longhaul.monitor.throughput import peak_flops

    if getattr(device, "type", "") != "cuda":
        return None
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return peak_flops(torch.cuda.get_device_name(device), precision, tf32)


def largest_product(device: object, precision: str) -> float:
    """FLOP/s of the product of two square matrices, the best of five."""
    import torch

    side = 8192 if getattr(device, "type", "") == "cuda" else 2048
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    a, b = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    return 2 * side**3 / min(timed(lambda: torch.mm(a, b)[0, 0].item()) for _ in range(6))


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
