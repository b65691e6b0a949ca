"""What watching costs: a step that reads every gauge beside one that reads none.

    python -m benchmarks.monitor_cost [--rounds 20]

The two take turns in one process, on random tokens, each with what the trainer does with its
figures on the host (names, a journal line). The difference over the default interval between
gauge steps is the cost. The CPU is judged at recipe `quickstart`, a GPU at `gpt2-124m`, as the
recipe computes there.
"""

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.common import Bar, Ratio, figure, interleaved, missing, paired_ratio, write_results
from benchmarks.step import bare_step

if TYPE_CHECKING:
    from longhaul.monitor.gauges import Readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5, help="of each kind in a round")
    given = parser.parse_args()
    import torch

    bars = cost("quickstart, CPU", "quickstart", "cpu", 3, given)
    gpu = "gpt2-124m, GPU"
    if torch.cuda.is_available():
        bars += cost(gpu, "gpt2-124m", "cuda", 1, given)
    else:
        bars.append(missing(f"{gpu}: cost", "there is no GPU on this machine", bar=1))
    write_results("monitor_cost", bars, "make bench-monitor")


def cost(
    name: str, recipe_name: str, device: str, bar: float, given: argparse.Namespace
) -> list[Bar]:
    import torch

    from longhaul.config.load import load_recipe, with_overrides
    from longhaul.config.train import MonitorSection
    from longhaul.train.precision import measured_recipe

    recipe = load_recipe(recipe_name, [f"machine.device={device}"]).recipe
    recipe = with_overrides(recipe, measured_recipe(recipe, torch.device(device)))
    step, batch = bare_step(recipe, compiled=recipe.machine.compiles)
    sequences = len(batch.tokens_BT)

    def steps(read_gauges: bool) -> Callable[[], float]:
        def seconds() -> float:
            began = time.perf_counter()
            for _ in range(given.steps):
                figures = step(batch, sequences, recipe.optim.lr, read_gauges)
                write_down(step.readings(figures.tolist()))
            return (time.perf_counter() - began) / given.steps

        return seconds

    measures = {"plain": steps(read_gauges=False), "gauges": steps(read_gauges=True)}
    for warm_up in measures.values():
        warm_up()
    print(name, flush=True)
    measured = interleaved(given.rounds, measures)
    ratio = paired_ratio(measured["gauges"], measured["plain"])
    interval = MonitorSection().gauge_interval_steps
    shares = Ratio(*(100 * (r - 1) / interval for r in (ratio.mean, ratio.low, ratio.high)))
    own = recipe.monitor.gauge_interval_steps
    of_own = 100 * (ratio.mean - 1) / own if own else 0.0
    return [
        # Judged by the interval's upper end: the difference of two noisy times.
        Bar(f"{name}: cost every {interval} steps", shares.mean, "%", bar, shares.high <= bar,
            f"of a step; {shares:.2f}"),
        figure(f"{name}: cost every {own} steps, the recipe's own", of_own, "%"),
        figure(f"{name}: a step that reads gauges", 100 * (ratio.mean - 1), "%",
               f"longer than a plain one of {1e3 * min(measured['plain']):.1f} ms"),
    ]  # fmt: skip


def write_down(readings: "Readings") -> None:
    """What becomes of readings on the host."""
    from longhaul.core.records import StepRecord, to_line

    to_line(
        StepRecord(
            attempt=1, segment="1.00", step=1, draw=0, next_draw=1, time=0.0, loss=0.0,
            gradient_norm=0.0, learning_rate=0.0, sequences=1, sequence_length=1,
            gauges=readings.gauges, totals=readings.totals,
            source_losses=readings.source_losses,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
