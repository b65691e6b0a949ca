import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from fakes import FakeClock
from longhaul.cli import runs
from longhaul.logbook.folder import create_run
from longhaul.logbook.segments import SegmentNumber, SegmentOpening, open_segment


@pytest.fixture
def call(tmp_path):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(runs.tree)
    app.command()(runs.report)

    def call(*arguments):
        result = CliRunner(env={"COLUMNS": "80"}).invoke(
            app, [*arguments, "--runs-dir", str(tmp_path)], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_only_a_fork_indents(call, tmp_path):
    folder = create_run(tmp_path / "alpha", FakeClock())
    first = SegmentNumber(1, 0)
    for number, parent in (
        (first, None),
        (SegmentNumber(1, 1), first),
        (SegmentNumber(2, 0), first),
    ):
        opening = {"attempt": 1, "step": 0, "draw": 0, "settings": {}, "opened": 1e6 + number.major}
        open_segment(
            folder, SegmentOpening(number=number, parent=parent, reason=f"why {number}", **opening)
        )
    lines = call("tree", "alpha").splitlines()
    places = {n: line.index(n) for line in lines for n in ("1.00", "1.01", "2.00")
              if f"{n} why" in line}  # fmt: skip
    assert places["1.00"] == places["1.01"] < places["2.00"]


def test_a_report_is_written_where_asked_and_its_place_told(call, tmp_path):
    create_run(tmp_path / "beta", FakeClock())
    assert "beta/report.html" in call("report", "beta").replace("\n", "")
    assert (tmp_path / "beta" / "report.html").is_file()
    call("report", "beta", "--out", str(tmp_path / "page.html"))
    assert "Nothing has been trained yet." in (tmp_path / "page.html").read_text()


def test_help_and_reports_do_not_pay_for_torch():
    code = (
        "import sys; import longhaul.cli.runs; early = {*sys.modules}; "
        "import longhaul.board.report; "
        "print([m for m in ('rich.tree', 'duckdb', 'pydantic') if m in early], "
        "[m for m in ('torch', 'plotly') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[] []"
