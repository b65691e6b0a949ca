"""The board in a real browser, beside a run that trains."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock
from longhaul.core.records import Decision, Event, Finding, StepRecord
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from small_runs import grown

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
HOSTILE = "<img src=x onerror='window.hacked=1'>"
TRACES = "document.getElementById('chart-loss').data.map(({ name, x, y }) => ({ name, x, y }))"
SHOWN = """[...document.querySelectorAll('.now > div')].map(
    ({ children: [term, value] }) => [term.textContent, value.textContent])"""
ENDLESS = (
    "--set", "train.steps=100000", "--set", "optim.schedule.shape=constant",
    "--set", "evaluation.interval_steps=50",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser is installed (looked for {', '.join(BROWSERS)})"
)


@pytest.fixture
def page() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.complaints = []
        page.on("console", lambda said: page.complaints.append(said.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        yield page
        browser.close()


@pytest.fixture
def board(room) -> Callable[..., str]:
    """Start a board of the room's runs; its address, with the token."""

    def start(*options: str) -> str:
        Path(room.runs).mkdir(exist_ok=True)
        process = room.start("board", str(room.runs), "--port", "0", *options)
        line = process.stdout.readline()
        assert line.startswith("board: http://127.0.0.1:"), line
        return line.split()[1]

    return start


def shown(page: Any, *terms: str) -> list[str]:
    """What stands beside these terms on one picture: the page of a live run is made anew."""
    beside = dict(page.evaluate(SHOWN))
    return [beside[term] for term in terms]


def test_a_run_is_seen_as_it_trains_and_obeys_who_has_the_token(room, page, board):
    training = room.start("train", "drill", *ENDLESS)
    address = board()
    create_run(room.runs / HOSTILE, FakeClock())
    page.goto(address)
    page.locator("a.run-card.live", has_text="drill").click()
    page.locator("#chart-loss.js-plotly-plot").wait_for()
    assert page.locator(".sketch").count() == 0  # it was drawn before, in the chart's place
    assert "all quiet" in page.locator("#verdict").inner_text()

    def moved_on(after: int) -> int:
        page.wait_for_function(
            "after => document.querySelector('.now dd')?.textContent.replace(/,/g, '') > after",
            arg=after,
        )
        return int(shown(page, "step")[0].replace(",", ""))

    first = moved_on(0)
    later = moved_on(first)
    step, loss = shown(page, "step", "training loss")
    drawn = page.evaluate("document.getElementById('chart-loss').data[0]")
    made = {r.step: r.loss for r in room.records() if isinstance(r, StepRecord)}
    assert int(step.replace(",", "")) >= later
    assert loss == f"{made[int(step.replace(',', ''))]:.4f}"
    assert all(
        made[x] == pytest.approx(y, rel=1e-4) for x, y in zip(drawn["x"], drawn["y"], strict=True)
    )

    page.keyboard.press("x")
    page.wait_for_function(
        "() => document.getElementById('chart-loss').layout.xaxis.title.text === 'target tokens'"
    )
    page.locator("#steer summary").click()
    form = page.locator("form[data-kind=set]")
    form.get_by_placeholder("optim.lr").fill("optim.lr=0.0011")
    form.get_by_placeholder("why").fill("seen on the board")
    form.get_by_role("button").click()
    page.locator("#answer.good", has_text="0.0011").wait_for()
    decision = next(r for r in room.records() if isinstance(r, Decision) and r.kind == "set")
    assert (decision.data["path"], decision.data["value"]) == ("optim.lr", 0.0011)
    assert decision.reason == "seen on the board"
    page.locator("#chronicle", has_text="seen on the board").wait_for()

    page.keyboard.press("Escape")
    page.locator("a.run-card", has_text=HOSTILE).wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#view img").count() == 0
    training.terminate()
    page.locator("a.run-card.stopped", has_text="drill").wait_for()
    assert page.complaints == []


def test_who_lacks_the_token_reads_and_compares_and_is_offered_nothing_else(
    room, page, board, tmp_path
):
    (tmp_path / "others.csv").write_text("tokens,loss\n512,4.0\n5120,1.0\n")
    grown(room.runs / "first")
    grown(room.runs / "second", steps=20)
    page.goto(re.sub("#.*", "", board("--reference", str(tmp_path / "others.csv"))))
    page.locator("a.run-card", has_text="first").click()
    page.locator("#chart-loss.js-plotly-plot").wait_for()
    assert page.locator("#steer").count() == 0

    menu = page.get_by_label("compare with")
    for name in ("second", "others"):
        menu.select_option(label=name)
        page.locator(".chosen button", has_text=name).wait_for()
    drawn = {trace["name"]: trace for trace in page.evaluate(TRACES)}
    assert drawn["second"]["y"][:20] == pytest.approx([5.0 / step for step in range(1, 21)], 1e-4)
    assert drawn["others"]["x"] == [1, 10]  # 512 tokens a step
    page.get_by_label("along").select_option(label="tokens")
    drawn = {trace["name"]: trace for trace in page.evaluate(TRACES)}
    assert drawn["others"]["x"] == pytest.approx([512, 5120])
    assert drawn["1.00"]["x"][9] == pytest.approx(5120)
    page.locator(".chosen button", has_text="second").click()
    assert "second" not in {trace["name"] for trace in page.evaluate(TRACES)}
    assert page.complaints == []


def test_a_forecast_comes_as_it_is_found_and_a_gauge_that_was_chosen_stays(room, page, board):
    folder = grown(room.runs / "grows", total_steps=1000)
    at = {"attempt": 1, "segment": "1.00"}
    journal = Journal(folder, 1)
    for step in range(31, 61):
        gauges = {"attention_logit_max": (1.05**step, 1.0), "residual_rms": (1.0, 1.0)}
        journal.append(
            StepRecord(
                **at, step=step, draw=step, next_draw=step + 1, time=1e6 + step, loss=1.0,
                gradient_norm=1.0, learning_rate=1e-3, sequences=8, sequence_length=64,
                gauges=gauges,
            )
        )  # fmt: skip
    page.goto(board())
    page.locator("a.run-card", has_text="grows").click()
    page.locator("#forecast-gauge", has_text="No danger is forecast").wait_for()

    evidence = {"value": 1.05**60, "danger_line": 100.0, "doubling_steps": 14.2}
    journal.append(
        Finding(
            **at, kind="growth", severity="warning", step=60, first_step=40, first_draw=40,
            time=1e6 + 60, subject="attention_logit_max[0]", evidence=evidence, sentence="it grows",
        )
    )  # fmt: skip
    told = page.locator("#forecast-gauge", has_text="Layer 0 will cross 100 at about step 94,")
    told.wait_for()
    page.locator("#chart-heat .annotation", has_text="94").wait_for()
    page.locator("#gauge").select_option("residual_rms")
    note = {"text": "seen by night", "who": "anna"}
    journal.append(Event(kind="note", step=60, time=1e6 + 61, data=note, **at))
    page.locator("#chronicle", has_text="seen by night").wait_for()
    page.locator("#forecast-gauge", has_text="No danger is forecast.").wait_for()
    assert page.locator("#gauge").input_value() == "residual_rms"
    assert page.locator("#gauge option").first.inner_text() == (
        "attention logit max · 100 at step 94"
    )
    covered = page.evaluate("""() => {
        document.getElementById("gauges").scrollIntoView({ behavior: "instant" });
        const top = document.getElementById("gauges").getBoundingClientRect().top;
        return document.getElementById("bar").getBoundingClientRect().bottom - top;
    }""")
    assert covered <= 0
    assert page.complaints == []
    journal.close()


def test_a_port_that_is_taken_is_said_in_one_line(room, board):
    port = board().split(":")[2].split("/")[0]
    code, output = room.run("board", str(room.runs), "--port", port)
    assert code == 2
    assert f"127.0.0.1:{port}: cannot be listened at" in output
    assert "Traceback" not in output
