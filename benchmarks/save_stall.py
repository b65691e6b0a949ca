"""What a save costs the training thread: beside training, and in the foreground.

    python -m benchmarks.save_stall [--rounds 6]

The two take turns in one process, on the whole training state of a recipe (weights and AdamW's
moments), into a folder beside this one. In the foreground a save is written, hashed, fsynced and
committed while training stands still. Beside training the thread hands the state over, computes
forward and backward passes of the recipe's own model on one sequence, as the next step would, and
then waits for the copy if it is not through, because the update must not change what is still being
read; what it blocked is both together. Both end with a committed checkpoint; reading it back is in
neither. The first save, for which the buffers are made, is told apart. On a GPU the copies are
queued ahead of the next step's work, and waited for at once: the longest they could keep it.

What the copy takes from the passes beside it is not a stall of the thread; it is told as a figure:
the same passes with the save, over those without.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import (
    HERE,
    Bar,
    at_most,
    figure,
    interleaved,
    missing,
    paired_ratio,
    write_results,
)

BAR_PERCENT = 6.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    import torch

    bars = []
    for recipe in ("quickstart", "gpt2-124m"):
        bars += stall(f"{recipe}, CPU", recipe, "cpu", given.rounds)
    gpu = "gpt2-124m, GPU"
    if torch.cuda.is_available():
        bars += stall(gpu, "gpt2-124m", "cuda", given.rounds)
    else:
        bars.append(missing(f"{gpu}: stall", "there is no GPU on this machine", bar=BAR_PERCENT))
    write_results("save_stall", bars, "python -m benchmarks.save_stall")


def stall(
    name: str,
    recipe: str,
    device: str,
    rounds: int,
    overrides: Sequence[str] = (),
    beside_here: Path = HERE,
) -> list[Bar]:
    """Rows of a recipe's state under `overrides`, saved into a folder in `beside_here`."""
    from longhaul.checkpoint.saver import Saver
    from longhaul.checkpoint.write import render_facts, write_checkpoint
    from longhaul.core.clocks import RealClock

    state, passes = state_of(recipe, device, overrides)
    size = sum(tensor.nbytes for tensor in state.tensors.values())
    print(f"{name}: {size / 1e6:.0f} MB", flush=True)
    with tempfile.TemporaryDirectory(prefix=".save-stall-", dir=beside_here) as folder:
        clock = RealClock()
        saver = Saver(Path(folder), attempt=1, still_owner=lambda: True, clock=clock, settled=True)
        computed: list[float] = []
        alone: list[float] = []

        def timed(body) -> float:  # type: ignore[no-untyped-def]
            began = time.perf_counter()
            body()
            return time.perf_counter() - began

        def beside() -> float:
            alone.append(timed(passes))
            began = time.perf_counter()
            saver.save(1, state)
            if device == "cuda":
                import torch

                torch.cuda.synchronize()  # the copies are queued ahead of the next step's work
            stalled = time.perf_counter() - began
            computed.append(timed(passes))
            stalled += timed(saver.settle)
            saver.wait()
            assert [change.kind for change in saver.poll()][-1] == "verified"
            return stalled

        def foreground() -> float:
            began = time.perf_counter()
            tensors = {name: tensor.detach().cpu() for name, tensor in state.tensors.items()}
            stages = write_checkpoint(
                Path(folder), step=1, attempt=1, tensors=tensors, pieces={},
                facts=render_facts(1, 1, state.facts), still_owner=lambda: True, clock=clock,
            )  # fmt: skip
            for stage, _, _ in stages:
                if stage == "committed":
                    return time.perf_counter() - began
            raise AssertionError("it was not committed")

        first = beside()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        times = interleaved(rounds, {"foreground": foreground, "beside": beside})
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
        saver.close()
    share = paired_ratio(times["beside"], times["foreground"])
    slower = paired_ratio(computed[1:], alone[1:])
    return [
        at_most(f"{name}: stall of a save", 100 * share.mean, "%", BAR_PERCENT,
                f"of one in the foreground; {share:.3f}"),
        figure(f"{name}: a save in the foreground", statistics.median(times["foreground"]), "s",
               f"{size / 1e6:.0f} MB through hash, fsync, commit"),
        figure(f"{name}: the training thread blocks", 1e3 * statistics.median(times["beside"]),
               "ms", f"the first time, with the buffers made, {1e3 * first:.1f} ms"),
        figure(f"{name}: passes beside the copy and the writing", slower.mean, "x",
               f"of the same passes before; {slower:.3f}"),
        figure(f"{name}: memory grown after the first save", grown / 1e3, "MB"),
    ]  # fmt: skip


def state_of(name: str, device: str, overrides: Sequence[str] = ()):  # type: ignore[no-untyped-def]
    """A recipe's training state, weights and two moments each; and the passes of one sequence."""
    import torch

    from longhaul.checkpoint.capture import TrainingState
    from longhaul.config.load import load_recipe
    from longhaul.model.initialise import build

    recipe = load_recipe(name, overrides).recipe
    vocabulary = recipe.tokenizer.vocab_size or 50_257
    model = build(recipe.model, vocabulary, recipe.seed, torch.device(device), 0)
    tensors = {}
    for key, weight in model.named_parameters():
        for part in ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq"):
            tensors[f"{part}.{key}"] = weight.detach().clone()
    tokens_BT = torch.arange(recipe.model.context, device=device).view(1, -1) % vocabulary

    def passes() -> None:
        # In float32 a GPU would take several times as long, and hide copies behind it.
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(tokens_BT, tokens_BT)
        loss.backward()
        model.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    passes()
    return TrainingState(tensors, {"progress": {"position": {"step": 1}}}), passes


if __name__ == "__main__":
    main()
