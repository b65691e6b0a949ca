from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.board import page
from longhaul.board.page import plotly_script
from longhaul.board.report import write_report
from longhaul.core.errors import LonghaulError, UsageError


def test_the_page_lies_in_the_runs_folder_or_where_asked(told, tmp_path):
    assert write_report(told, FakeClock()) == told.path / "report.html"
    other = write_report(told, FakeClock(), tmp_path / "other.html")
    text = other.read_text(encoding="utf-8")
    assert text == (told.path / "report.html").read_text(encoding="utf-8")
    assert len(text) < 6_000_000


def test_a_place_that_cannot_be_written_is_a_message(told, tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        write_report(told, FakeClock(), tmp_path / "missing" / "other.html")
    with pytest.raises(UsageError, match="is a folder"):
        write_report(told, FakeClock(), Path(""))  # noqa: PTH201 (what an empty --out becomes)


def test_plotly_cannot_end_its_own_script_element():
    script = plotly_script().lower()
    assert "</script" not in script
    assert "<!--" not in script


def test_without_plotly_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LonghaulError, match="plotly is not installed"):
        plotly_script()
