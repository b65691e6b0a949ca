"""`longhaul nodes`: a table, and a person's word."""

import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fakes import FakeClock
from longhaul.cli.control import nodes
from longhaul.core.errors import UsageError
from longhaul.logbook.folder import create_run
from longhaul.logbook.run_spec import resolve_spec, write_run_spec
from longhaul.supervise.nodes.ledger import NodeEvent, append, cordons, read

APP = typer.Typer(rich_markup_mode=None)
APP.command()(nodes)


def call(*words: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        APP, [str(word) for word in words], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    at = time.time()
    for kind, more in (
        ("probed", {}), ("joined", {}), ("failed", {"cause": "ecc-uncorrectable"}),
        ("cordoned", {"reason": "memory lost data"}), ("left", {}),
    ):  # fmt: skip
        append(tmp_path / "nodes",
               NodeEvent(kind=kind, parts=("board:A17",), host="a", time=at, **more))  # fmt: skip
    return tmp_path / "nodes"


def test_the_table_tells_of_every_node_what_is_known(ledger: Path) -> None:
    header, row = call(ledger).splitlines()
    assert header.split() == ["node", "known", "by", "probes", "failures", "incidents", "used",
                              "cordoned"]  # fmt: skip
    for told in ("a  ", "board:A17", "ecc-uncorrectable", "s ago", "memory lost data"):
        assert told in row
    assert call(ledger / "nodes.jsonl") != ""


def test_a_cordon_is_lifted_with_a_reason_and_set_again(ledger: Path) -> None:
    with pytest.raises(UsageError, match="no reason"):
        call(ledger, "--release", "a")
    assert cordons(read(ledger)), "nothing is lifted without one"
    assert "a is released by" in call(ledger, "--release", "a", "--reason", "new memory")
    assert not cordons(read(ledger))
    word = read(ledger)[-1]
    assert (word.kind, word.reason, bool(word.who)) == ("released", "new memory", True)
    assert "released" in call(ledger).splitlines()[1]
    call(ledger, "--cordon", "board:A17", "--reason", "it is hot")
    assert "it is hot" in call(ledger)


def test_a_run_names_its_ledger_and_its_nodes(ledger: Path, tmp_path: Path) -> None:
    table = "{name='a', identity=['board:A17']}, {name='new', identity=['board:N']}"
    options = (f"supervise.node=[{table}]", f"supervise.node_ledger='{ledger}'")
    folder = create_run(tmp_path / "runs" / "alpha", FakeClock())
    write_run_spec(folder, resolve_spec("quickstart", options, None, tmp_path / "prepared"))
    for name in ("alpha", folder.path):
        rows = call(name, "--runs-dir", tmp_path / "runs").splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["a", "new"]
    with pytest.raises(UsageError) as error:
        call("alpha", "--runs-dir", tmp_path / "runs", "--cordon", "nev", "--reason", "x")
    assert "did you mean new?" in error.value.remedy


def test_what_is_no_run_and_no_ledger_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not found"):
        call("alfa", "--runs-dir", tmp_path)
    with pytest.raises(UsageError, match="one at a time"):
        call("alfa", "--release", "a", "--cordon", "b")
