"""The page in a real browser: it draws, it complains of nothing, it asks nobody for anything."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.board.report import write_report
from longhaul.logbook.folder import create_run

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser is installed (looked for {', '.join(BROWSERS)})"
)


def opened(page: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """The page's elements once its script has run, and what the browser's console says."""
    ended = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            "--virtual-time-budget=10000", "--enable-logging=stderr", f"--user-data-dir={profile}",
            "--window-size=1200,2000", *flags, page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    console = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
    return ended.stdout, console


@pytest.mark.parametrize("flags", [(), ("--window-size=400,800",)])
def test_a_story_is_drawn_without_a_complaint(told, tmp_path, flags):
    page, console = opened(
        write_report(told, FakeClock(), tmp_path / "page.html"), tmp_path / "profile", *flags
    )
    assert console == []
    for name in ("loss", "progress", "learning_rate", "gradient_norm", "throughput", "heat"):
        drawn = re.search(rf'id="chart-{name}"[^>]*js-plotly-plot', page) or re.search(
            rf'class="[^"]*js-plotly-plot[^"]*" id="chart-{name}"', page
        )
        assert drawn, f"chart {name} was not drawn"
    assert page.count('class="main-svg"') >= 7
    assert '<g class="heatmaplayer' in page or 'class="hm"' in page
    assert "alert(1)</script>" not in page.replace("&lt;/script&gt;", "")


def test_a_forecast_is_marked_beside_its_row_and_drawn_to_its_line(new_story, tmp_path):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    usual = story._totals
    story._totals = lambda step: usual(step) | {"output_logit_max": 9 * 1.003 ** (step - 1000)}
    story.train(1000, 1400, grow=0.3)
    for subject, doubling in (("attention_logit_max[3]", 231.0), ("output_logit_max", 231.4)):
        evidence = {"value": 16.0, "danger_line": 100.0, "doubling_steps": doubling}
        story.find("growth", "warning", 1400, 1000, subject=subject, evidence=evidence,
                   sentence="<b>it grows</b>")  # fmt: skip
    report = write_report(story.close(), FakeClock(), tmp_path / "page.html")
    page, console = opened(report, tmp_path / "profile", "--window-size=400,800")
    assert console == []
    words = re.search(r'id="forecast-gauge">Layer 3 will cross 100 at about step ([\d,]+),', page)
    assert words
    heat = page[page.index('id="chart-heat"') : page.index('id="forecast-gauge"')]
    assert f">{words[1]}</text>" in heat
    assert ">100 at step</text>" in heat
    assert ">danger from 100</text>" in page[page.index('id="chart-total"') :]


def test_an_empty_run_is_opened_without_a_complaint(tmp_path):
    folder = create_run(tmp_path / "empty", FakeClock())
    page, console = opened(write_report(folder, FakeClock()), tmp_path / "profile")
    assert console == []
    assert "Nothing has been trained yet." in page


def test_a_broken_script_would_be_noticed(told, tmp_path):
    path = write_report(told, FakeClock(), tmp_path / "page.html")
    script = path.read_text()
    assert "takeGauges();" in script
    path.write_text(script.replace("takeGauges();", "nonsense();"))
    _, console = opened(path, tmp_path / "profile")
    assert any("nonsense" in line for line in console)
