"""The board on a run of a million steps: first picture, updates, memory.

    python -m benchmarks.board_scale [--steps 1000000] [--ranks 64]

Makes the logbook of such a run (32 layers, gauges every 25 steps, evaluations, checkpoints, what
its ranks compared and a verdict on one of them now and then), with a rollback every tenth of it;
compacts it, as `longhaul compact` does; lets a second attempt go on; and serves it. Measured: the
run's page in headless Chromium, from the address to the drawn loss, and to the chart that can be
zoomed; what an update costs the server; the server's memory.
"""

import argparse
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from benchmarks.common import Bar, at_most, figure, missing, write_results

from longhaul.core.clocks import RealClock
from longhaul.core.records import Event, StepRecord, to_line
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.queries import compact
from longhaul.logbook.segments import SegmentNumber, SegmentOpening, open_segment

LAYERS = 32
FILE_BYTES = 64 << 20
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
UPDATES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-board-") as name:
        bars = measure(Path(name) / "runs", given.steps, given.ranks)
    write_results("board_scale", bars, "make bench-board")


def measure(runs: Path, steps: int, ranks: int) -> list[Bar]:
    """Rows of one run of so many steps."""
    began = time.perf_counter()
    folder = create_run(runs / "million", RealClock())
    lines = written(folder, steps, ranks)
    made = time.perf_counter() - began
    compact(folder, RealClock())
    compacted = time.perf_counter() - began - made
    size = sum(path.stat().st_size for path in folder.journal.glob("*.jsonl"))
    bars = [
        figure(
            "lines of the journal", lines, "lines", f"{size / 1e6:,.0f} MB, made in {made:.0f} s"
        ),
        figure("compacting it", compacted, "s"),
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "longhaul", "board", str(runs), "--port", "0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1].partition("/#")[0]
        bars += of_server(address, folder, steps, psutil.Process(server.pid))
    finally:
        server.terminate()
        server.wait()
    return bars


def of_server(address: str, folder: RunFolder, steps: int, server: psutil.Process) -> list[Bar]:
    """What a browser sees of a server that has read nothing yet, and what updates cost."""
    key = key_of(folder)
    bars = first_pictures(f"{address}/#/run/{key}")
    seconds = []
    path = folder.journal / "000002.pilot.jsonl"
    first = answer(f"{address}/api/runs/{key}")["cursor"]
    for number in range(UPDATES):
        cursor = first + number
        with path.open("a") as journal:
            journal.write(f"{to_line(step_record(steps + number + 1, 2, '1.99'))}\n")
        began = time.perf_counter()
        with urllib.request.urlopen(f"{address}/api/runs/{key}/events?cursor={cursor}") as stream:
            for line in stream:
                if line.startswith(b"data:"):
                    break
        seconds.append(time.perf_counter() - began)
        assert json.loads(line[5:])["steps"]["step"] == [steps + number + 1]
    bars.append(
        at_most("an update: a step read, judged and sent", 1e3 * median(seconds), "ms", 100)
    )
    answer(f"{address}/api/runs/{key}/gauges")
    bars.append(at_most("memory of the server", server.memory_info().rss / 1e6, "MB", 500))
    return bars


def browser_path() -> str | None:
    return next((path for each in BROWSERS if (path := shutil.which(each))), None)


def first_pictures(address: str) -> list[Bar]:
    """Seconds from asking for the page to its loss being seen, in a browser that runs already."""
    name = "first picture: the loss is drawn"
    browser = browser_path()
    if browser is None:
        return [missing(name, f"no browser is installed (looked for {', '.join(BROWSERS)})", 1)]
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return [missing(name, "playwright is not installed", 1)]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = opened.new_page()
        began = time.perf_counter()
        page.goto(address, wait_until="commit")
        page.locator("#chart-loss path").first.wait_for()
        drawn = time.perf_counter() - began
        page.locator("#chart-loss.js-plotly-plot").wait_for()
        chart = time.perf_counter() - began
        opened.close()
    return [at_most(name, drawn, "s", 1.0), figure("its chart can be zoomed", chart, "s")]


def key_of(folder: RunFolder) -> str:
    from longhaul.run.board.shelf import key_of_path

    return key_of_path(folder.path)


def answer(address: str) -> Any:
    with urllib.request.urlopen(address) as found:
        return json.load(found)


def written(folder: RunFolder, steps: int, ranks: int) -> int:
    """Write the run's journal and segments; how many lines."""
    tenth = steps // 10
    back = tenth // 20
    count = 0
    rows: list[Iterator[str]] = []
    for number in range(10):
        name, begin = f"1.{number:02d}", max(0, number * tenth - back * (number > 0))
        opened(folder, name, f"1.{number - 1:02d}" if number else "", begin, attempt=1)
        end = (number + 1) * tenth
        rows.append(steps_of(name, range(begin + 1, end + 1)))
    count += in_files(folder, rows)
    opened(folder, "1.99", "1.09", steps, attempt=2)
    (folder.journal / "000002.pilot.jsonl").touch()
    events = folder.journal / "000001.pilot.events.jsonl"
    with events.open("w") as journal:
        for line in all_events(steps, ranks):
            count += 1
            journal.write(f"{line}\n")
    return count


def steps_of(segment: str, steps: Iterable[int]) -> Iterator[str]:
    return (to_line(step_record(step, 1, segment)) for step in steps)


def opened(folder: RunFolder, number: str, parent: str, step: int, attempt: int) -> None:
    settings = {"model": {"layers": LAYERS}, "optim": {"lr": 3e-4, "clip": 1.0}}
    open_segment(
        folder,
        SegmentOpening(
            number=SegmentNumber.parse(number), attempt=attempt, step=step, draw=step * 64,
            parent=SegmentNumber.parse(parent) if parent else None, reason="loss spike",
            settings=settings, fingerprint={}, nodes=("node-0",), opened=1.7e9 + step,
        ),
    )  # fmt: skip


def in_files(folder: RunFolder, rows: list[Iterator[str]]) -> int:
    """Lines of steps in files that are rotated as a trainer's are."""
    count = size = 0
    rotation = 1
    journal = (folder.journal / "000001.pilot.jsonl").open("w")
    for line in chain.from_iterable(rows):
        if size > FILE_BYTES:
            journal.close()
            rotation, size = rotation + 1, 0
            journal = (folder.journal / f"000001-{rotation:04d}.pilot.jsonl").open("w")
        size += journal.write(f"{line}\n")
        count += 1
    journal.close()
    return count


def step_record(step: int, attempt: int, segment: str) -> StepRecord:
    gauges, totals = {}, {}
    if step % 25 == 0:
        names = ("residual_max", "residual_rms", "attention_logit_max", "mlp_out_rms")
        gauges = {n: tuple(1 + random.random() for _ in range(LAYERS)) for n in names}
        totals = {"logsumexp_max": 5 + random.random(), "update_ratio.matrix": random.random()}
    return StepRecord(
        attempt=attempt, segment=segment, step=step, draw=step * 64, next_draw=step * 64 + 64,
        time=1.7e9 + 1.4 * step, loss=2 + 8 * math.exp(-step / 1e5) + random.random() / 25,
        gradient_norm=0.3 + random.random(), learning_rate=3e-4, sequences=512,
        sequence_length=2048, seconds={"training": 1.36, "data_wait": 0.04},
        gauges=gauges, totals=totals,
    )  # fmt: skip


def all_events(steps: int, ranks: int) -> Iterator[str]:
    """As a run of so many ranks tells of itself."""

    def line(event: str, step: int, **data: Any) -> str:
        at = {"attempt": 1, "segment": f"1.{min(9, 10 * step // steps):02d}", "step": step}
        return to_line(Event(kind=event, time=1.7e9 + 1.4 * step, data=data, **at))

    yield line("attempt-started", 0, total_steps=2 * steps, pid=1, host="node-0", steps_made=0)
    for step in range(500, steps + 1, 500):
        for health in ("committed", "verified"):
            yield line("checkpoint", step, health=health, size_bytes=1.5e10, manifest="ab" * 32)
        yield line("compared", step, what="weights", took_s=0.2, sound=True)
        if step % 1000 == 0:
            yield line("evaluation", step, loss=2.1 + 8 * math.exp(-step / 1e5), bits_per_byte=0.9)
        if step % 20_000 == 0:
            rank = step // 20_000 % ranks
            reason = f"rank {rank} takes 1.4 times as long as the median of {ranks}"
            yield line(
                "machine-verdict", step, kind="straggler", ranks=[rank], nodes=[], reason=reason
            )


if __name__ == "__main__":
    main()
