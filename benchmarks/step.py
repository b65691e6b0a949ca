"""The bare step of a recipe on the device at hand: tokens/s, MFU, peak memory.

    python -m benchmarks.step RECIPE [--small] [--set batch.micro_sequences=8]

Eager and compiled (where a compiler exists), in every precision that the device has, each case in
a process of its own. The text is random tokens in documents as long as a web page: data, journal
and evaluation have no part in it.
On a GPU this is the first thing to run; its steps are queued, as a trainer queues them, and
timed by the device's own events. MFU is PaLM's (DESIGN rule 16) over the vendor's dense peak of the
dtype; beside it, and alone where that is not known (any CPU), stands as a ceiling the best product
of two matrices measured in the same process.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, Bar, figure, missing, write_results

if TYPE_CHECKING:
    import torch

    from longhaul.config.recipe import Recipe
    from longhaul.data.batches import Batch
    from longhaul.train.step import TrainingStep

VOCABULARY = 50_257
DOCUMENT_TOKENS = 1_034
"""Of a document of FineWeb-Edu's 10BT sample, the mean: its card has 9.67 million of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("--small", action="store_true", help="the recipe's small twin")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each case")
    parser.add_argument("--micro-batches", type=int, default=1, help="in a step")
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
        f"step-{label}{'-small' if given.small else ''}",
        results,
        "python -m benchmarks.step " + " ".join(sys.argv[1:]),
    )


def case(given: argparse.Namespace, precision: str, form: str, name: str) -> list[Bar]:
    print(f"measuring {name}", flush=True)
    options = ["--small"] if given.small else []
    options += ["--steps", str(given.steps), "--micro-batches", str(given.micro_batches)]
    got = run_case(given.recipe, f"{precision},{form}", [*options, *sets(given.set)])
    if isinstance(got, str):
        return [missing(name, got)]
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


def sets(overrides: Sequence[str]) -> list[str]:
    """As options of a command."""
    return [word for override in overrides for word in ("--set", override)]


def run_case(
    recipe: str, case: str, options: Sequence[str], limit_s: float | None = None
) -> dict[str, Any] | str:
    """What `measure` finds in a process of its own, or why it found nothing."""
    command = [sys.executable, "-m", "benchmarks.step", recipe, "--case", case, *options]
    try:
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s:.0f} s"
    if ended.returncode != 0:
        return (ended.stderr.strip().splitlines() or ["no word"])[-1][:200]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


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
    step, batch = bare_step(recipe, form == "compiled", given.micro_batches)
    device, (sequences, length) = step.device, batch.tokens_BT.shape
    at_once = sequences // given.micro_batches
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)  # finding a micro-batch has its own peak

    def once() -> "torch.Tensor":
        return step(batch, at_once, recipe.optim.lr, read_gauges=False)

    first = timed(lambda: once()[0].item())  # waits
    for _ in range(3):
        once()
    queued = 5 if on_gpu else 1
    rounds = max(1, given.steps // queued)
    seconds = statistics.median(seconds_each(once, device, queued) for _ in range(rounds))
    flops_per_token = model_size(recipe.model, vocabulary).flops_per_token(length)
    known = known_peak(device, precision, recipe.precision.float8)
    flops, tokens_per_s = flops_per_token * sequences * length, sequences * length / seconds
    # Before the ceiling is measured, whose matrices are none of the step's.
    peak = torch.cuda.max_memory_reserved(device) / 1e6 if on_gpu else resident_mb()
    ceiling = largest_product(device, precision)
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else device.type,
        "tokens_per_s": tokens_per_s,
        "sequences_at_once": at_once,
        "step_ms": seconds * 1e3,
        "first_s": first,
        "mfu": mfu(tokens_per_s, flops_per_token, known),
        "of_ceiling": flops / seconds / ceiling,
        "ceiling_tflops": ceiling / 1e12,
        "peak_mb": peak,
    }


def vocabulary_of(recipe: "Recipe") -> int:
    """Tokens of the recipe's tokenizer; GPT-2's where only the prepared text would tell."""
    tokenizer = recipe.tokenizer
    known = {"characters": 65, "bytes": 257}.get(tokenizer.kind)
    return tokenizer.vocab_size or known or VOCABULARY


def bare_step(
    recipe: "Recipe", compiled: bool, micro_batches: int = 1
) -> "tuple[TrainingStep, Batch]":
    """A fresh model's step, and so many micro-batches of random tokens, the last of the vocabulary
    the end of text.

    One is enough to compare steps; with more the update has no larger share than in training.
    """
    import torch

    from longhaul.data.batches import Batch
    from longhaul.parallel.device import choose_device, settle_torch
    from longhaul.train.memory import fitting_micro_sequences
    from longhaul.train.parts import build_step

    settle_torch(recipe)
    device, vocabulary = choose_device(recipe.machine.device), vocabulary_of(recipe)
    end_of_text = vocabulary - 1 if recipe.model.document_mask else None
    machine = recipe.machine.model_copy(update={"compile": compiled})
    recipe = recipe.model_copy(update={"machine": machine})
    step = build_step(recipe, vocabulary, end_of_text, device, sources=("random tokens",))
    length = recipe.batch_at(0).sequence_length
    if recipe.batch.micro_sequences == "auto":
        sequences = fitting_micro_sequences(step, recipe).sequences
    else:
        sequences = recipe.micro_sequences(0)
    sequences *= micro_batches
    generator = torch.Generator().manual_seed(0)
    window_BT = torch.randint(vocabulary - 1, (sequences, length + 1), generator=generator)
    # Masks of documents cost what their lengths make of them, which chance alone would leave 50
    # times as long.
    ends_BT = torch.rand(window_BT.shape, generator=generator) < 1 / DOCUMENT_TOKENS
    window_BT[ends_BT] = vocabulary - 1
    source_B = torch.zeros(sequences, dtype=torch.int64)
    tokens_BT, targets_BT = window_BT[:, :-1], window_BT[:, 1:]
    return step, Batch(tokens_BT, targets_BT, targets_BT.numel(), 0, sequences, source_B)


def known_peak(device: "torch.device", precision: str, float8: bool = False) -> float | None:
    import torch

    from longhaul.monitor.throughput import peak_flops

    if device.type != "cuda":
        return None
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return peak_flops(torch.cuda.get_device_name(device), precision, tf32, float8)


# On GPUs which shape is fastest depends on their multiprocessors: the best of several is told.
_GPU_SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 8192, 4096), (16384, 8192, 8192))
_CPU_SHAPES = ((1024, 1024, 1024),)


def largest_product(device: "torch.device", precision: str) -> float:
    """FLOP/s of the best product of two matrices, of random numbers: zeros and ones take less power
    and so pass for faster than any model's.
    """
    import torch

    dtype = {"float32": torch.float32, "fp16_weights": torch.float16}
    best, shapes = 0.0, _GPU_SHAPES if device.type == "cuda" else _CPU_SHAPES
    for rows, inner, columns in shapes:
        kind = dtype.get(precision, torch.bfloat16)
        a = torch.randn(rows, inner, device=device).to(kind)
        b = torch.randn(inner, columns, device=device).to(kind)
        times = 20 if device.type == "cuda" else 2
        seconds = min(seconds_each(partial(torch.mm, a, b), device, times) for _ in range(6))
        best = max(best, 2 * rows * inner * columns / seconds)
    return best


def seconds_each(body: Callable[[], object], device: "torch.device", times: int) -> float:
    """Of each of so many calls, by the device's own clock where it has one: from the end of all
    that was queued before to the end of the last.
    """
    import torch

    if device.type != "cuda":
        return timed(lambda: [body() for _ in range(times)]) / times
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    began.record()
    for _ in range(times):
        body()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3 / times


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def resident_mb() -> float:
    """Largest resident set of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
