"""The report of a preflight, for programs and for people."""

import json
import math

import pytest
from typer.testing import CliRunner

import longhaul.run.preflight.preflight
from longhaul.cli.entry import application
from longhaul.cli.preflight import as_object
from longhaul.core.errors import ExitCode
from longhaul.run.preflight.context import Check, judged, skipped

MADE = [judged("disk", "5 checkpoints fit"), skipped("remote", "none in the recipe")]
WRONG = judged("layout", "tensor 2: apart by inf", "do not train with it", loss=math.inf)


def told(monkeypatch: pytest.MonkeyPatch, made: list[Check], *options: str) -> tuple[int, str]:
    def check(typed: object, show: object) -> list[Check]:
        assert callable(show)
        for line in made:
            show(line)
        return made

    monkeypatch.setattr(longhaul.run.preflight.preflight, "preflight", check)
    ended = CliRunner().invoke(application(), ["preflight", "quickstart", *options])
    return ended.exit_code, ended.stdout


def test_a_report_has_a_line_for_each_check_and_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, text = told(monkeypatch, MADE)
    lines = [line for line in text.splitlines() if line]
    assert code == 0
    assert lines[0].split(maxsplit=2)[:2] == ["ok", "disk"]
    assert lines[1].split(maxsplit=2)[:2] == ["skipped", "remote"]
    assert lines[-1] == "ready"


def test_a_fault_is_told_with_its_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = told(monkeypatch, [*MADE, WRONG])
    assert code == ExitCode.NEEDS_PERSON
    assert "not ready" in text
    assert "→ do not train with it" in text


def test_programs_get_one_object_that_every_parser_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = told(monkeypatch, [*MADE, WRONG], "--json")
    report = json.loads(text, parse_constant=pytest.fail)
    assert (code, report["exit_code"]) == (17, 17)
    assert [check["verdict"] for check in report["checks"]] == ["ok", "skipped", "failed"]
    assert report["checks"][2]["data"]["loss"] == "inf"
    assert as_object("quickstart", MADE, ExitCode.FINISHED, "ready")["verdict"] == "ready"
