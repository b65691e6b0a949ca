"""Near-duplicates, against datatrove on the same files: speed, memory, growth, and what is found.

    python -m benchmarks.dedup [--mb 100] [--large-mb 1000] [--rounds 3] [--peer PYTHON]

The text is that of the installed packages, cut into documents and repeated with edits: 30 % of the
repeats have 1 to 30 % of their words replaced, most of them few, the others so many that they are
documents of their own. A measurement is a process of its own on two cores, from parts in Parquet to
parts without duplicates: read, shingle, 128 hashes, bands, pairs, true Jaccard, components, write.
`--peer` is the Python of an environment with datatrove[processing] and tokenizers, which does the
same with as many hashes and bands.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from benchmarks.common import (
    ROOT,
    Bar,
    at_least,
    at_most,
    figure,
    interleaved,
    missing,
    paired_ratio,
    write_results,
)

CORES = 2
THRESHOLD = 0.8
_ORIGINALS = 0.2
"""Of the volume; the rest are repeats of them."""
_DOCUMENT_CHARACTERS = (400, 12_000)
_NEAR = 0.3
"""Of the repeats."""
_SAMPLE = 3_000
_SAMPLED_EVERY_S = 0.1
_PEER = Path(__file__).with_name("dedup_datatrove.py")


@dataclass(frozen=True)
class Measured:
    """One process."""

    seconds: float
    """From the first byte read to the last one written; imports and text not counted."""
    cpu_s: float
    """Of the whole process and its children, as last seen before each ended."""
    peak_bytes: int
    """Most that it and its children held: the sum of their proportional shares."""
    kept: int

    def __str__(self) -> str:
        said = f"{self.seconds:.1f} s, {self.cpu_s:.1f} CPU-seconds"
        return f"{said}, {self.peak_bytes / 1e6:,.0f} MB, {self.kept:,} kept"


@dataclass(frozen=True)
class Volume:
    """Parts on disk."""

    folder: Path
    num_bytes: int
    num_documents: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=100, help="of text, for the speed")
    parser.add_argument("--large-mb", type=int, default=1000, help="of text, for the growth")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", type=Path, help="Python of an environment with datatrove")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        return one(given.one, given.out)
    with tempfile.TemporaryDirectory(prefix="bench-dedup-") as name:
        room = Path(name)
        small = written(room / "small", given.mb * 1_000_000)
        large = written(room / "large", given.large_mb * 1_000_000)
        bars = measure(room, small, large, given.peer, given.rounds) + quality(room, small)
    write_results("dedup", bars, "make bench-dedup")
    return None


def documents(num_bytes: float) -> list[str]:
    """So much text of the installed packages and the standard library, cut into documents."""
    import sysconfig

    folders = [Path(sysconfig.get_path("stdlib")), Path(psutil.__file__).parent.parent]
    by, texts, size = random.Random(16), [], 0
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        while len(text) >= _DOCUMENT_CHARACTERS[0]:
            cut = by.randint(*_DOCUMENT_CHARACTERS)
            texts.append(text[:cut])
            size += len(texts[-1])
            text = text[cut:]
            if size >= num_bytes:
                return texts
    return texts


def repeated(num_bytes: int) -> Iterator[tuple[str, str]]:
    """Names and texts until there are so many bytes; `7-103` is the seventh repeat of `0-103`."""
    originals = documents(_ORIGINALS * num_bytes)
    words = [word for text in originals[::50] for word in text.split(" ")]
    by, size, repeat = random.Random(17), 0, 0
    while True:
        for number, original in enumerate(originals):
            text = original
            if repeat:
                near = by.random() < _NEAR
                share = 0.01 + 0.29 * by.random() ** 3 if near else 0.6 + 0.4 * by.random()
                own = text.split(" ")
                for at in by.sample(range(len(own)), round(share * len(own))):
                    own[at] = words[int(by.random() * len(words))]
                text = " ".join(own)
            yield f"{repeat}-{number}", text
            size += len(text.encode())
            if size >= num_bytes:
                return
        repeat += 1


def written(folder: Path, num_bytes: int) -> Volume:
    """The corpus in parts, as reading leaves it."""
    from longhaul.data.corpus.parts import PartWriter, part_of
    from longhaul.data.documents import Document

    folder.mkdir()
    writer = PartWriter(folder, "text")
    count = 0
    for count, (name, text) in enumerate(repeated(num_bytes), 1):
        writer.add(Document(text, name), count)
    writer.flush(count)
    parts = [part_of(path) for path in sorted(folder.glob("*.parquet"))]
    made = Volume(
        folder,
        sum(part.num_bytes for part in parts if part),
        sum(part.num_documents for part in parts if part),
    )
    print(f"{made.num_bytes / 1e6:,.0f} MB in {made.num_documents:,} documents", flush=True)
    return made


def one(volume: Path, out: Path) -> None:
    """In a process of its own: deduplicate, write what stays, print the seconds and the count."""
    from benchmarks.dedup import write_kept  # by a name that workers find it under

    from longhaul.config.data import DedupSection
    from longhaul.data.corpus.dedup.duplicates import DedupStage
    from longhaul.data.corpus.engine import Resources, run_jobs
    from longhaul.data.corpus.parts import part_of

    found = [part_of(path) for path in sorted(volume.glob("*.parquet"))]
    parts = tuple(part for part in found if part)
    resources = Resources(CORES, 8 << 30)
    began = time.perf_counter()
    names = tuple(part.path.stem for part in parts)
    stage = DedupStage(
        parts, names, DedupSection(threshold=THRESHOLD), True, (), out, resources, lambda _: None
    )
    dropped = stage.run()
    jobs = [
        (part.path, dropped.rows(name).tolist(), out / part.path.name)
        for part, name in zip(parts, names, strict=True)
    ]
    kept = sum(count for _, count in run_jobs(write_kept, jobs, resources))
    print(json.dumps({"seconds": time.perf_counter() - began, "kept": kept}))


def write_kept(job: tuple[Path, list[int], Path]) -> int:
    """Write a part again without these rows."""
    import numpy as np
    from pyarrow import parquet

    path, rows, out = job
    table = parquet.read_table(path, columns=["name", "text"])
    stays = np.setdiff1d(np.arange(len(table)), rows)
    parquet.write_table(table.take(stays), out, compression="zstd", compression_level=1)
    return len(stays)


def timed(command: list[str]) -> Measured:
    """Run it on two cores, watching its memory and its children's."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    started = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment
    )
    peak, ended = 0, threading.Event()
    spent: dict[int, float] = {}

    def watch() -> None:
        nonlocal peak
        root = psutil.Process(started.pid)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(started.pid, sorted(os.sched_getaffinity(0))[:CORES])
        while not ended.wait(_SAMPLED_EVERY_S):
            held = 0
            try:
                for process in (root, *root.children(recursive=True)):
                    facts: Any = process.memory_full_info()
                    held += getattr(facts, "pss", facts.rss)
                    spent[process.pid] = sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
            peak = max(peak, held)

    watching = threading.Thread(target=watch)
    watching.start()
    output, _ = started.communicate()
    ended.set()
    watching.join()
    if started.returncode:
        sys.exit(f"{' '.join(command)} ended with {started.returncode}")
    said = json.loads(output.strip().splitlines()[-1])
    return Measured(said["seconds"], sum(spent.values()), peak, said["kept"])


def measure(room: Path, small: Volume, large: Volume, peer: Path | None, rounds: int) -> list[Bar]:
    """Speed, memory and growth."""
    turn = 0

    def out() -> Path:
        nonlocal turn
        turn += 1
        folder = room / f"out-{turn}"
        folder.mkdir()
        return folder

    def ours(volume: Volume) -> Measured:
        own = [sys.executable, "-m", "benchmarks.dedup", "--one", str(volume.folder)]
        return timed([*own, "--out", str(out())])

    def theirs() -> Measured:
        from longhaul.data.corpus.dedup.signatures import HASHES, rows_for

        rows = rows_for(THRESHOLD)
        shape = [str(HASHES // rows), str(rows), str(CORES)]
        return timed([str(peer), str(_PEER), str(small.folder), str(out()), *shape])

    measures = {"longhaul": lambda: ours(small)} | ({"datatrove": theirs} if peer else {})
    measures["longhaul, large"] = lambda: ours(large)
    measured = interleaved(rounds, measures)
    return bars_of(measured, small, large)


def bars_of(measured: dict[str, list[Measured]], small: Volume, large: Volume) -> list[Bar]:
    """The table's rows."""
    seconds = {name: [each.seconds for each in some] for name, some in measured.items()}
    rate = small.num_bytes / 1e6 / median(seconds["longhaul"])
    growth = large.num_bytes / small.num_bytes
    linear = paired_ratio(seconds["longhaul, large"], [growth * s for s in seconds["longhaul"]])
    low, high = (
        max(each.peak_bytes for each in measured[name]) for name in ("longhaul", "longhaul, large")
    )
    more = large.num_documents - small.num_documents
    stated = f"{small.num_bytes / 1e6:,.0f} MB, {small.num_documents:,} documents"
    bars = [
        at_least("end to end on two cores", rate, "MB/s", 40, stated),
        at_most("large over small, by volume", linear.mean, "×", 1.15,
                f"{growth:.1f} × the volume; {linear:.2f}"),
        at_most("memory a document", (high - low) / max(1, more), "B", 1500,
                f"from {low / 1e6:,.0f} MB to {high / 1e6:,.0f} MB"),
        figure("CPU time", 1e9 * median(e.cpu_s for e in measured["longhaul"]) / small.num_bytes,
               "ms/MB", "of all processes, their start counted"),
        figure("kept", median(each.kept for each in measured["longhaul"]), "documents"),
    ]  # fmt: skip
    if "datatrove" not in measured:
        return [*bars, missing("as fast as datatrove", "no --peer was given", 4)]
    ratio = paired_ratio(seconds["datatrove"], seconds["longhaul"])
    theirs = measured["datatrove"]
    return [
        *bars,
        at_least("as fast as datatrove", ratio.mean, "×", 4, format(ratio, ".2f")),
        figure("datatrove", small.num_bytes / 1e6 / median(seconds["datatrove"]), "MB/s"),
        figure("datatrove, CPU time", 1e9 * median(e.cpu_s for e in theirs) / small.num_bytes,
               "ms/MB"),
        figure("datatrove, memory", max(each.peak_bytes for each in theirs) / 1e6, "MB"),
        figure("datatrove, kept", median(each.kept for each in theirs), "documents"),
    ]  # fmt: skip


def quality(room: Path, volume: Volume) -> list[Bar]:
    """Recall among repeats, and precision of the pairs told similar, by sets in Python."""
    import numpy as np
    from pyarrow import parquet

    paths = sorted(volume.folder.glob("*.parquet"))
    tables = [parquet.read_table(path, columns=["name", "text"]) for path in paths]
    text = {
        (part, row): value
        for part, table in enumerate(tables)
        for row, value in enumerate(table.column("text").to_pylist())
    }
    name = {
        value: (part, row)
        for part, table in enumerate(tables)
        for row, value in enumerate(table.column("name").to_pylist())
    }
    [stage, *_] = (room / "out-1").glob("duplicates-*")
    gone = {
        (part, row)
        for part, path in enumerate(paths)
        for row in np.load(stage / "dropped" / f"{path.stem}.npy").tolist()
    }
    by = random.Random(18)
    repeats = [each for each in name if not each.startswith("0-")]
    chosen = by.sample(repeats, min(4 * _SAMPLE, len(repeats)))
    alike = [
        name[each]
        for each in chosen
        if reference(text[name[each]], text[name["0-" + each.partition("-")[2]]]) >= 0.85
    ]
    pairs = np.load(stage / "pairs.npy")
    picked = pairs[by.sample(range(len(pairs)), min(_SAMPLE, len(pairs)))].tolist()
    true = sum(
        reference(*(text[each >> 32, each & 0xFFFFFFFF] for each in pair)) >= THRESHOLD
        for pair in picked
    )
    if not alike or not picked:
        return [missing("recall", "no repeat is so similar; give --mb more", 0.95)]
    recall = sum(each in gone for each in alike) / len(alike)
    return [
        at_least("recall where Jaccard is 0.85 or more", recall, "", 0.95, f"{len(alike):,}"),
        at_least("precision of similar pairs", true / len(picked), "", 0.97, f"{len(picked):,}"),
    ]


def reference(one: str, other: str) -> float:
    """Jaccard similarity of the sets of five words in a row."""
    sets = []
    for text in (one, other):
        words = text.lower().split()
        runs = {tuple(words[at : at + 5]) for at in range(len(words) - 4)}
        sets.append(runs or {tuple(words)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


if __name__ == "__main__":
    main()
