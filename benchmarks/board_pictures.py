"""Pictures of the board for the documents, from a run in trouble that is watched as it trains.

    python -m benchmarks.board_pictures [--steps 4000]

Trains the recipe `drill` under its supervisor. At a third of the steps somebody multiplies the
learning rate by 1,000, and the run diverges; at two thirds its worker is killed. A browser watches
all the while, and takes `docs/pictures/board-*.png`.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.board_scale import browser_path
from benchmarks.common import ROOT

from longhaul.core.records import StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_last
from longhaul.supervise.ownership import left_over

PICTURES = ROOT / "docs" / "pictures"
PATIENCE_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="board-pictures-") as name:
        watch(Path(name), given.steps)


def longhaul(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "longhaul", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def watch(place: Path, steps: int) -> None:
    """Train, break, and take the pictures; all that was started is ended."""
    from playwright.sync_api import sync_playwright

    runs = place / "runs"
    training = longhaul(
        "train", "drill", "--runs-dir", str(runs), "--prepared-dir", str(place / "prepared"),
        "--set", f"train.steps={steps}", "--set", "evaluation.interval_steps=100",
        "--set", "checkpoint.interval_steps=100", "--set", "monitor.gauge_interval_steps=10",
        "--set", "sample.at_evaluations=true", "--set", "sample.tokens=160",
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    folder = RunFolder(runs / "drill")
    wait_for_step(folder, 1)
    board = longhaul("board", str(runs), "--port", "0")
    try:
        assert board.stdout is not None
        address = board.stdout.readline().split()[1]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=browser_path(), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport={"width": 1280, "height": 1150})
            page.goto(address)
            page.add_style_tag(content="#bar { position: static }")  # it would lie over parts
            page.locator("a.run-card").click()
            page.locator("#chart-loss.js-plotly-plot").wait_for()
            wait_for_step(folder, steps // 3)
            subprocess.run(
                [sys.executable, "-m", "longhaul", "set", "drill", "optim.lr=3", "--force",
                 "--reason", "a slip of the pen", "--runs-dir", str(runs)], check=True,
            )  # fmt: skip
            page.locator("#part-incidents tbody").first.wait_for(timeout=1e3 * PATIENCE_S)
            wait_for_step(folder, 2 * steps // 3)
            (worker,) = left_over(folder)
            os.kill(worker.pid, signal.SIGKILL)
            wait_for_step(folder, 3 * steps // 4, attempt=2)
            page.locator("#part-incidents", has_text="attempt failed").wait_for()
            take(page, "run")
            page.locator("#part-incidents").screenshot(path=PICTURES / "board-incidents.png")
            page.locator("#part-gauges").screenshot(path=PICTURES / "board-gauges.png")
            page.locator("#part-samples").screenshot(path=PICTURES / "board-samples.png")
            page.keyboard.press("Escape")
            page.locator("a.run-card").wait_for()
            page.set_viewport_size({"width": 1280, "height": 420})
            take(page, "list")
            page.set_viewport_size({"width": 400, "height": 860})
            page.locator("a.run-card").click()
            page.locator("#chart-loss.js-plotly-plot").wait_for()
            take(page, "phone")
            browser.close()
        training.communicate(timeout=PATIENCE_S)
        print(f"exit code {training.returncode}; pictures in {PICTURES.relative_to(ROOT)}/")
    finally:
        for process in (training, board):
            process.terminate()
            process.wait()


def take(page: Any, name: str) -> None:
    page.wait_for_timeout(1500)  # for charts to come to rest
    page.screenshot(path=PICTURES / f"board-{name}.png")


def wait_for_step(folder: RunFolder, step: int, attempt: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        last = read_last(folder, 1, events=False) if folder.journal.is_dir() else []
        record = last[0] if last else None
        if isinstance(record, StepRecord) and (record.step, record.attempt) >= (step, attempt):
            return
        time.sleep(0.2)
    raise SystemExit(f"step {step} of attempt {attempt} did not come")


if __name__ == "__main__":
    main()
