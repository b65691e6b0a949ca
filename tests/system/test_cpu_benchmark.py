"""The benchmarks of a CPU in one command: which run, and what the page shows."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks import cpu, loader
from benchmarks.common import block


def body(name: str, value: float | None, note: str = "") -> dict[str, Any]:
    row = {"name": name, "value": value, "unit": "×", "bar": 1.0, "met": None, "note": note}
    return {
        "command": "make x", "date": "2026-01-01T00:00:00", "commit": "abc", "bars": [row],
        "device": {"cpu": "EPYC", "usable_cores": 2}, "versions": {"torch": "2.13.0"},
    }  # fmt: skip


def test_without_peer_and_text_only_what_needs_neither_runs(tmp_path: Path) -> None:
    assert set(cpu.commands(None, None)) == {"quickstart", "loader", "monitor_cost"}
    assert "vs_nanogpt" not in cpu.commands(None, tmp_path)
    whole = cpu.commands(tmp_path, tmp_path / "text")
    assert whole["vs_nanogpt"] == ["--peer", str(tmp_path), "--text", str(tmp_path / "text")]


def test_every_benchmark_it_runs_has_a_place_on_the_page(tmp_path: Path) -> None:
    assert set(cpu.commands(tmp_path, tmp_path)) <= set(cpu.TITLES)


def test_the_page_shows_rows_reasons_and_what_is_missing() -> None:
    page = cpu.as_page({"loader": body("reading", 40.0), "ablate": body("ideas", None, "no text")})
    assert "| reading | 40 × | 1 × |  |  |" in page
    assert "| ideas | not measured | 1 × |  | no text |" in page
    missing = page.split("Not measured: ")[1]
    assert "`quickstart`" in missing
    assert "`loader`" not in missing


def test_the_documents_figures_are_those_of_the_result_files() -> None:
    told = block(cpu.DOCUMENT, "cpu")
    assert told.strip() == cpu.document_table(cpu.stored()), "python -m benchmarks.cpu --page"


@pytest.mark.parametrize(("value", "wanted"), [(0.06, "0.0667 ×"), (0.08, "0.0667 ×, not met")])
def test_a_row_is_held_against_the_bar_of_today(value: float, wanted: str) -> None:
    row = next(row for row in cpu.ROWS if row.file == "race-bf16")
    found = body("", 1.0)
    found["bars"] = [{**found["bars"][0], "name": name, "value": value} for name in row.bars]
    assert row.cells(found)[1:4] == [
        f"{value:.3f} × (0.1 s against 0.1 s; {value:.3f} against {value:.3f})", wanted,
        "EPYC, 2026-01-01",
    ]  # fmt: skip
    assert row.cells(None)[1] == "not measured"


def test_reading_is_measured_beside_a_bare_copy(tmp_path: Path) -> None:
    bars = {bar.name: bar for bar in loader.measure(tmp_path, tokens=100_000, rounds=2)}
    for recipe in ("gpt2-124m", "speedrun-124m"):
        rate = bars[f"{recipe}: tokens/s"].value
        assert rate is not None
        over = bars[f"{recipe}: reading over the fastest step"]
        assert over.value == rate / loader.NEED
        assert bars[f"{recipe}: of a bare copy's speed"].value
