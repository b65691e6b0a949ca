"""From text to shards of tokens, against nanoGPT's way on the same text in the same run.

    python -m benchmarks.prepare --peer PYTHON [--mb 100] [--large-mb 1000] [--rounds 3]

The text is that of installed packages, one document a file; the vocabulary a byte-level BPE of
32,000 tokens trained on it, which both sides use. PYTHON has `datasets` and `tiktoken`
(`tokens_nanogpt_way.py`). Both use as many cores as they are given. First every document's tokens
by tiktoken are compared with those of the `tokenizers` library. CPU-seconds are of the process and
its children, reading, deduplication, hashes and checks of ours included. How the wall time follows
the cores is measured on that text, which one process prepares, and on a large one, which is
prepared in parts: the same documents again and again, each under a line of its own, in one file.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.common import (
    HERE,
    ROOT,
    Bar,
    at_most,
    figure,
    interleaved,
    missing,
    paired_ratio,
    write_results,
)

VOCABULARY = 32_000
CPU_BAR = 0.7
"""CPU-seconds of ours ÷ nanoGPT's."""
LINEAR_BAR = 1.15
"""Wall time on all cores × cores ÷ wall time on one."""
_TRAINED_ON = 20
"""Of so many documents one is trained on: 5 MB of 100."""


class Cost(NamedTuple):
    """Of one preparation."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Room:
    """Where all of it lies."""

    folder: Path
    peer: str | None

    @property
    def text(self) -> Path:
        return self.folder / "text.jsonl"

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def large(self) -> Path:
        return self.folder / "large.jsonl"

    def ours(self, cores: Sequence[int], text: Path | None = None) -> Cost:
        """`longhaul data prepare`, nothing of it made before."""
        prepared = self.folder / "prepared"
        shutil.rmtree(prepared, ignore_errors=True)
        source = f'data.sources=[{{path="{text or self.text}"}}]'
        tokenizer = f'tokenizer={{kind="file", path="{self.tokenizer}"}}'
        command = [sys.executable, "-m", "longhaul", "data", "prepare", "gpt2-124m"]
        return _measured(
            [*command, "--set", source, "--set", tokenizer, "--prepared-dir", str(prepared)], cores
        )

    def theirs(self, cores: Sequence[int]) -> Cost:
        """One process a core."""
        out = self.folder / "theirs"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        script = str(HERE / "tokens_nanogpt_way.py")
        vocabulary = str(self.folder / "vocabulary.json")
        arguments = [str(self.text), vocabulary, str(out), str(len(cores))]
        return _measured([str(self.peer), script, *arguments], cores)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", help="a Python with `datasets` and `tiktoken`")
    parser.add_argument("--mb", type=int, default=100, help="of text")
    parser.add_argument("--large-mb", type=int, default=1000, help="of text in parts; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-prepare-") as name:
        room = Room(Path(name), given.peer)
        bars = [*make(room, given.mb), *measure(room, given.mb, given.rounds)]
        if given.large_mb:
            bars += measure_large(room, given.large_mb, given.rounds)
    write_results("prepare", bars, "make bench-prepare PEER=path/to/python")


def make(room: Room, megabytes: int) -> list[Bar]:
    """The text and the vocabulary, and whether both libraries give all of it the same tokens."""
    from longhaul.data.subwords import SubwordTokenizer, train_bpe

    texts, left = [], megabytes * 1e6
    for text in packages():
        texts.append(text)
        left -= len(text.encode())
        if left <= 0:
            break
    room.text.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    trained = train_bpe(texts[::_TRAINED_ON], VOCABULARY, end_of_text=True)
    content = trained.content()
    room.tokenizer.write_bytes(content)
    (room.folder / "vocabulary.json").write_text(json.dumps(for_peer(content)))

    fast = SubwordTokenizer(content, True, "tokenizer.json")
    refused = fast.choose_encoder(texts[:1])
    seconds, differing, num_bytes = [0.0, 0.0], 0, 0
    for text in texts:
        began = time.process_time()
        ours = fast.encode(text)
        between = time.process_time()
        theirs = trained.encode(text)
        seconds[0] += between - began
        seconds[1] += time.process_time() - between
        differing += ours.tolist() != theirs.tolist()
        num_bytes += len(text.encode())
    note = refused or f"of {len(texts):,} documents, {num_bytes / 1e6:.0f} MB"
    return [
        at_most("documents with other tokens than `tokenizers`", differing, "", 0, note),
        figure("CPU time of tiktoken ÷ `tokenizers`", seconds[0] / seconds[1], ""),
    ]


def packages() -> Iterator[str]:
    """Text of the files of installed packages and the standard library."""
    from longhaul.data.sources import package_folders, stdlib_folder

    for folder in dict.fromkeys([*package_folders(), *map(Path, sys.path), stdlib_folder()]):
        for path in sorted(folder.rglob("*")) if folder.name.endswith("packages") else ():
            if path.suffix in (".py", ".rst", ".txt", ".md", ".pyi", ".h"):
                text = path.read_bytes().decode(errors="ignore")
                if text.strip() and "\0" not in text:
                    yield text


def for_peer(content: bytes) -> dict[str, object]:
    """The vocabulary of a `tokenizer.json` as `tokens_nanogpt_way.py` reads it."""
    from longhaul.data.tokenizing import END_OF_TEXT, byte_symbols

    whole = json.loads(content)
    known = dict(whole["model"]["vocab"])
    end = known.pop(END_OF_TEXT)
    values = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    return {
        "split": whole["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"],
        "end_of_text": end,
        "tokens": {bytes(values[c] for c in token).hex(): n for token, n in known.items()},
    }


def measure(room: Room, megabytes: int, rounds: int) -> list[Bar]:
    """Rows of cost."""
    cores = sorted(os.sched_getaffinity(0))
    measures = {
        "ours, all cores": lambda: room.ours(cores),
        "ours, one core": lambda: room.ours(cores[:1]),
    }
    if room.peer:
        measures["nanoGPT's way"] = lambda: room.theirs(cores)
    found = interleaved(rounds, measures)
    ours, one = found["ours, all cores"], found["ours, one core"]
    wall = median(cost.wall_s for cost in ours)
    bars = [
        figure("ours, all cores", megabytes / wall, "MB/s", f"{len(cores)} cores"),
        figure("ours", median(c.cpu_s for c in ours), "CPU-s"),
        _scaling("wall time × cores ÷ that on one core", ours, one, len(cores)),
    ]
    name = "CPU-seconds ÷ nanoGPT's way"
    if not room.peer:
        return [*bars, missing(name, "no --peer given", CPU_BAR)]
    theirs = found["nanoGPT's way"]
    ratio = paired_ratio([c.cpu_s for c in ours], [c.cpu_s for c in theirs])
    walls = paired_ratio([c.wall_s for c in ours], [c.wall_s for c in theirs])
    return [
        *bars,
        figure("nanoGPT's way", median(c.cpu_s for c in theirs), "CPU-s"),
        at_most(name, ratio.mean, "", CPU_BAR, f"{ratio}"),
        figure("wall time ÷ nanoGPT's way", walls.mean, "", f"{walls}"),
    ]


def measure_large(room: Room, megabytes: int, rounds: int) -> list[Bar]:
    """Rows of a large text."""
    texts = [json.loads(line)["text"] for line in room.text.read_text().splitlines()]
    left, turn = megabytes * 1e6, 0
    with room.large.open("w") as file:
        while left > 0:
            for number, text in enumerate(texts):
                file.write(json.dumps({"text": f"{turn} {number}\n{text}"}) + "\n")
                left -= len(text.encode())
            turn += 1
    cores = sorted(os.sched_getaffinity(0))
    found = interleaved(
        rounds,
        {
            "all": lambda: room.ours(cores, room.large),
            "one": lambda: room.ours(cores[:1], room.large),
        },
    )
    wall = median(cost.wall_s for cost in found["all"])
    name = f"the same for {megabytes:,} MB in parts"
    return [
        figure("ours, all cores, in parts", megabytes / wall, "MB/s", f"{len(cores)} cores"),
        _scaling(name, found["all"], found["one"], len(cores)),
    ]


def _scaling(name: str, ours: Sequence[Cost], one: Sequence[Cost], cores: int) -> Bar:
    linear = [cost.wall_s * cores for cost in ours]
    scaling = paired_ratio(linear, [cost.wall_s for cost in one])
    return at_most(name, scaling.mean, "", LINEAR_BAR, f"{scaling}")


def _measured(command: Sequence[str], cores: Sequence[int]) -> Cost:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )  # fmt: skip
    output, _ = process.communicate()
    wall_s = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(
            f"{command[0]} ended with {process.returncode}:\n{output.decode()[-2000:]}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s, cpu_s)


if __name__ == "__main__":
    main()
