"""Reading batches, against what a step takes: memory-mapped shards in the order of draws.

    python -m benchmarks.loader [--tokens 50000000] [--rounds 5]

Reads global batches of `gpt2-124m`'s and `speedrun-124m`'s shape from prepared shards of random
tokens, each at a draw of its own, as a run does. The ceiling in the same run is the bare copy of as
many windows at random positions of one array in memory. What the fastest step known could take
(modded-nanogpt's on one GH200, of ANCHORS) is the need: reading must be well above it, and happens
beside the step. The files are in the page cache after the first round, which is told apart.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.common import Bar, at_least, figure, interleaved, paired_ratio, write_results

if TYPE_CHECKING:
    from longhaul.data.dataset import Dataset

VOCABULARY = 50_257
NEED = 238_000
"""Tokens/s: the fastest step of this shape that is published for one GPU."""
RESERVE = 10.0
"""Times the need."""
_BATCHES = 20
"""Of a round: one alone takes a millisecond or a few."""
_SHAPES = {"gpt2-124m": (480, 1024), "speedrun-124m": (192, 2048)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=50_000_000, help="in the shards")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-loader-") as name:
        bars = measure(Path(name), given.tokens, given.rounds)
    write_results("loader", bars, "make bench-loader")


def measure(room: Path, tokens: int, rounds: int) -> list[Bar]:
    """Rows of both shapes."""
    numbers = np.random.default_rng(0).integers(VOCABULARY, size=tokens).astype(np.uint16)
    numbers.tofile(room / "tokens.bin")
    dataset = prepared(room)
    bars = []
    for recipe, (sequences, length) in _SHAPES.items():
        bars += read(
            recipe, dataset, numbers, min(sequences, tokens // length // 2), length, rounds
        )
    return bars


def prepared(room: Path) -> "Dataset":
    """The tokens, as longhaul's shards."""
    from longhaul.config.load import load_recipe
    from longhaul.data.prepare import prepare

    source = f'data.sources=[{{name="random", path="{room / "tokens.bin"}", format="nanogpt"}}]'
    tokenizer = f'tokenizer={{kind="numbers", vocab_size={VOCABULARY}}}'
    return prepare(load_recipe("gpt2-124m", [source, tokenizer]).recipe, room, lambda line: None)


def read(
    recipe: str,
    dataset: "Dataset",
    numbers: "np.ndarray[tuple[int], np.dtype[np.uint16]]",
    sequences: int,
    length: int,
    rounds: int,
) -> list[Bar]:
    """Rows of one shape."""
    from longhaul.config.load import load_recipe
    from longhaul.data.batches import BatchReader, BatchRequest

    lengths = [f"model.context={length}", f"batch.sequence_length={length}"]
    reader = BatchReader(dataset, load_recipe("gpt2-124m", lengths).recipe)
    generator, draw, in_batch = np.random.default_rng(1), 0, sequences * length
    windows = np.lib.stride_tricks.sliding_window_view(numbers, length + 1)

    def through_order() -> float:
        nonlocal draw
        began = time.perf_counter()
        for _ in range(_BATCHES):
            draw = reader.read(BatchRequest(draw, sequences, length)).next_draw
        return _BATCHES * in_batch / (time.perf_counter() - began)

    def bare_copy() -> float:
        begins = generator.integers(len(numbers) - length - 1, size=(_BATCHES, sequences))
        began = time.perf_counter()
        for begin in begins:
            windows[begin].astype(np.int64)
        return _BATCHES * in_batch / (time.perf_counter() - began)

    print(f"{recipe}: {sequences} × {length} tokens")
    through_order()  # the files come into the page cache
    ways = {"reader": through_order, "bare copy": bare_copy}
    measured = interleaved(rounds, ways)
    reader.close()
    rate, share = (
        median(measured["reader"]),
        paired_ratio(measured["reader"], measured["bare copy"]),
    )
    need = f"{NEED:,} tokens/s: modded-nanogpt on one GH200"
    return [
        at_least(f"{recipe}: reading over the fastest step", rate / NEED, "×", RESERVE, need),
        figure(f"{recipe}: tokens/s", rate, "tokens/s", "the files in the page cache"),
        figure(f"{recipe}: batches/s", rate / in_batch, "1/s", f"{sequences} × {length}"),
        figure(f"{recipe}: of a bare copy's speed", share.mean, "×", f"{share:.2f}"),
    ]


if __name__ == "__main__":
    main()
