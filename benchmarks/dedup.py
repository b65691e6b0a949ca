"""Near-duplicates, from files to what is dropped, beside text-dedup on the same files.

    python -m benchmarks.dedup [--peer PYTHON] [--mb 300] [--large 1000] [--rounds 2]

The text is that of the installed packages, again and again with 0.2 to 20 % of its words edited, in
JSON lines. Ours reads it, writes its parts, makes shingles of five words, 128 hashes and their
bands, compares what shares one, and writes which documents go; the others are read past them from
then on. `--peer` is a Python that has text-dedup (its MinHash, 128 permutations, the same shingles
and threshold, its faster hash, as many processes), which reads the same files and writes what is
left.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
from benchmarks.common import Bar, at_least, at_most, figure, interleaved, missing, write_results

THRESHOLD = 0.8
FILE_BYTES = 25_000_000
_EDITS = (0.002, 0.01, 0.05, 0.2)
_WATCHED_S = 0.1


@dataclass(frozen=True)
class Run:
    """One run over a body of text."""

    seconds: float
    peak: int
    """Bytes of all its processes together; shared pages are counted once."""
    said: str

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.peak / 1e9:.2f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", type=Path, help="a Python that has text-dedup")
    parser.add_argument("--mb", type=int, default=300, help="of text to compare on")
    parser.add_argument("--large", type=int, default=1000, help="MB of text to grow to")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ours:
        deduplicate(given.ours)
        return
    with tempfile.TemporaryDirectory(prefix="bench-dedup-") as name:
        bars = measure(Path(name), given.peer, given.mb, given.large, given.rounds)
    write_results("dedup", bars, "make bench-dedup")


def measure(room: Path, peer: Path | None, mb: int, large: int, rounds: int) -> list[Bar]:
    """All rows."""
    sizes = {"small": large // 10, "middle": mb, "large": large}
    documents = {name: write_text(room / name, size) for name, size in sizes.items()}
    print(f"{documents['middle']:,} documents in {mb} MB, {documents['large']:,} in {large} MB")
    ways = {"ours": lambda: ours(room / "middle", room)}
    if peer is not None:
        ways["text-dedup"] = lambda: theirs(peer, room / "middle", room)
    measured = interleaved(rounds, ways)
    middle = min(measured["ours"], key=lambda run: run.seconds)
    grown = interleaved(rounds, {n: lambda n=n: ours(room / n, room) for n in ("small", "large")})
    small, most = (min(grown[n], key=lambda run: run.seconds) for n in ("small", "large"))
    growth = most.seconds / small.seconds / (large / sizes["small"])
    more = max(0, most.peak - middle.peak) / (documents["large"] - documents["middle"])
    speed = f"{large} MB in {most.seconds:.1f} s on {os.cpu_count()} cores"
    peak = f"{middle.peak / 1e9:.2f} GB at {mb} MB, {most.peak / 1e9:.2f} at {large}"
    bars = [
        at_least("end to end", large / most.seconds, "MB/s", 40, speed),
        at_most(f"time, {large} over {sizes['small']} MB, by the text's", growth, "×", 1.15),
        at_most("memory for each further document", more, "bytes", 1500, peak),
        figure("documents dropped", dropped(most), "documents", f"of {documents['large']:,}"),
    ]
    if peer is None:
        return [*bars, missing("faster than text-dedup", "no --peer was given", 4)]
    fastest = min(run.seconds for run in measured["text-dedup"])
    return [
        *bars,
        at_least("faster than text-dedup", fastest / middle.seconds, "×", 4, f"on {mb} MB"),
        figure("text-dedup", mb / fastest, "MB/s", f"ours there {mb / middle.seconds:.1f}"),
    ]


def write_text(folder: Path, mb: int) -> int:
    """So much text in files of 25 MB; the number of documents."""
    from longhaul.config.data import SourceSection
    from longhaul.data.documents import Breakage
    from longhaul.data.sources import locate

    source = SourceSection(path="python-packages")
    corpus = locate(source, 0, folder, print)
    texts = [document.text for document in corpus.documents(Breakage("packages", 1.0))]
    by, size, number = random.Random(16), 0, 0
    folder.mkdir()
    for file in count():
        with (folder / f"{file:03d}.jsonl").open("w") as out:
            written = 0
            while written < FILE_BYTES and size < mb * 1_000_000:
                text = texts[number % len(texts)]
                if number >= len(texts):
                    text = edited(text, by)
                out.write(json.dumps({"text": text}) + "\n")
                written += len(text)
                size += len(text)
                number += 1
        if size >= mb * 1_000_000:
            return number
    raise AssertionError("files do not end")


def edited(text: str, by: random.Random) -> str:
    words = text.split(" ")
    for _ in range(max(1, int(len(words) * by.choice(_EDITS)))):
        words[by.randrange(len(words))] = f"{by.random():.6f}"
    return " ".join(words)


def ours(text: Path, room: Path) -> Run:
    return watched([sys.executable, "-m", "benchmarks.dedup", "--ours", str(text)], room)


def deduplicate(text: Path) -> None:
    """In a process of its own: read, find, write."""
    from longhaul.config.load import load_recipe
    from longhaul.data.corpus.engine import Resources
    from longhaul.data.corpus.refine import Refinery
    from longhaul.data.sources import locate

    data = load_recipe(
        "quickstart",
        [f'data.sources=[{{path="{text}"}}]', f"data.dedup.threshold={THRESHOLD}"],
    ).recipe.data
    with tempfile.TemporaryDirectory(prefix="bench-dedup-ours-", dir=text.parent) as name:
        corpus = locate(data.sources[0], 0, Path(name), print)
        resources = Resources.of_machine()
        Refinery((corpus,), data, None, 0, Path(name) / "tokens", resources, print).deduplicated()


def theirs(peer: Path, text: Path, room: Path) -> Run:
    with tempfile.TemporaryDirectory(prefix="bench-dedup-peer-", dir=room) as name:
        command = [
            str(peer), "-m", "text_dedup.minhash", "--path", "json", "--data_dir", str(text),
            "--split", "train", "--cache_dir", f"{name}/cache", "--output", f"{name}/out",
            "--column", "text", "--batch_size", "10000", "--ngram", "5", "--num_perm", "128",
            "--threshold", str(THRESHOLD), "--hash_func", "xxh3", "--num_proc", str(os.cpu_count()),
        ]  # fmt: skip
        return watched(command, Path(name))


def watched(command: list[str], room: Path) -> Run:
    """Run it to its end, looking at its memory on the way."""
    began = time.perf_counter()
    with (room / "said.txt").open("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        peak, stop = [0], threading.Event()

        def watch() -> None:
            while not stop.wait(_WATCHED_S):
                peak[0] = max(peak[0], memory(process.pid))

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        code = process.wait()
        seconds = time.perf_counter() - began
        stop.set()
        watching.join()
        said.seek(0)
        text = said.read()
    if code:
        raise SystemExit(f"{' '.join(command[:3])} … ended with {code}:\n{text[-2000:]}")
    return Run(seconds, peak[0], text)


def memory(process: int) -> int:
    total = 0
    try:
        first = psutil.Process(process)
        for each in (first, *first.children(recursive=True)):
            total += each.memory_full_info().pss
    except psutil.Error:
        pass  # one of them has just ended
    return total


def dropped(run: Run) -> float:
    """What ours says it dropped."""
    [line] = [line for line in run.said.splitlines() if "near-duplicate" in line and "and" in line]
    return float(sum(int(word.replace(",", "")) for word in line.split() if word[0].isdigit()))


if __name__ == "__main__":
    main()
