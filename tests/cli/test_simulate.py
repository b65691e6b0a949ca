"""`longhaul simulate` as it is typed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longhaul.cli.entry import application
from longhaul.core.errors import UsageError


def typed(*words: str):
    return CliRunner().invoke(application(), ["simulate", *words], catch_exceptions=True)


def test_a_preset_prints_both_runs_and_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    given = ("--preset", "opt-175b", "--days", "3", "--seeds", "2", "--page", str(page))
    result = typed(*given)
    assert result.exit_code == 0
    assert "OPT-175B: " in result.stdout
    assert "OPT-175B under longhaul: " in result.stdout
    assert page.read_text().startswith("<!doctype html>")


def test_json_is_one_object_and_nothing_else() -> None:
    result = typed("--preset", "opt-175b", "--days", "2", "--seeds", "1", "--json")
    body = json.loads(result.stdout)
    assert [run["scenario"] for run in body["results"]] == ["OPT-175B", "OPT-175B under longhaul"]
    assert body["results"][0]["inputs"]["person_s"]["source"].startswith("assumed")


@pytest.mark.parametrize(
    "words", [(), ("--preset", "x"), ("drill", "--gpus", "8", "--days", "-1"), ("drill",)]
)
def test_wrong_arguments_are_a_users_mistake(words: tuple[str, ...]) -> None:
    assert isinstance(typed(*words).exception, UsageError)
