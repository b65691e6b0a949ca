"""`longhaul export` and `longhaul import`, on a run that was really trained, and a run from it."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.conftest import OPTIONS
from fakes import SilentView
from longhaul.cli import exchange, runs
from longhaul.core.errors import DataError, ExitCode, NeedsPerson, UsageError
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.logbook.segments import read_segments
from longhaul.run.train.launch import Start, start

pytest.importorskip("transformers", reason="transformers is not installed")

LLAMA = ("model.activation=swiglu", "model.qk_norm=false", "model.dropout=0.0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run of Llama's switches lies, `runs/drill`."""
    place = tmp_path_factory.mktemp("exchange")
    typed = Start("drill", (*OPTIONS, *LLAMA), runs=place / "runs", prepared=place / "prepared")
    assert start(typed, SilentView()) is ExitCode.FINISHED
    return place


def call(monkeypatch: pytest.MonkeyPatch, place: Path, *arguments: str) -> str:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(exchange.export)
    app.command("import")(exchange.import_weights)
    app.command()(runs.tree)
    monkeypatch.chdir(place)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def begin_with(folder: Path, place: Path, *more: str, own: Sequence[str] = LLAMA) -> RunFolder:
    """A run that begins with these weights and learns next to nothing."""
    options = *OPTIONS, *own, f'init.from="{folder}"', "optim.lr=1e-12", *more
    typed = Start("drill", options, runs=place / "again", prepared=place / "prepared")
    assert start(typed, SilentView()) is ExitCode.FINISHED
    return RunFolder(place / "again" / "drill")


def losses(folder: RunFolder) -> dict[int, float]:
    events = [record for record in read_journal(folder, steps=False) if isinstance(record, Event)]
    return {e.step: float(e.data["loss"]) for e in events if e.kind == "evaluation"}


@pytest.mark.slow
def test_a_run_is_exported_with_a_card_and_begins_another_where_it_was(
    place, monkeypatch, tmp_path
):
    out = tmp_path / "out"
    said = call(monkeypatch, place, "export", "drill", "--out", str(out))
    assert "LlamaForCausalLM" in said
    assert "computes the same logits" in said
    card = (out / "README.md").read_text()
    trained = losses(RunFolder(place / "runs" / "drill"))
    for text in (f"{trained[4]:.4f}", "| first | 1 |", "Nothing went wrong", "after 4 steps"):
        assert text in card
    assert str(place) not in card  # where somebody's files lie is nobody's business
    assert not [path for path in tmp_path.iterdir() if path != out]
    with pytest.raises(UsageError, match="is there already"):
        call(monkeypatch, place, "export", "drill", "--out", str(out))

    begun = begin_with(out, tmp_path)
    assert losses(begun)[2] == pytest.approx(trained[4], abs=2e-4)
    (first,) = read_segments(begun)
    assert first.weights["folder"] == str(out)
    assert first.weights["family"] == "llama"
    shown = call(monkeypatch, tmp_path, "tree", "drill", "--runs-dir", str(tmp_path / "again"))
    assert f"from {out}" in shown
    # Made again from its beginning, it takes the same weights or none.
    shutil.rmtree(begun.checkpoints)
    config = json.loads((out / "config.json").read_bytes())
    (out / "config.json").write_text(json.dumps(config | {"other": 1}))
    with pytest.raises(NeedsPerson, match="other weights"):
        begin_with(out, tmp_path, "train.steps=5")


def test_an_earlier_step_and_half_precision(place, monkeypatch, tmp_path):
    out = tmp_path / "out"
    call(monkeypatch, place, "export", "drill", "--step", "2", "--dtype", "bf16", "--out", str(out))
    assert json.loads((out / "config.json").read_bytes())["torch_dtype"] == "bfloat16"
    assert re.search(r"after 2 steps.*at step 2\.", (out / "README.md").read_text(), re.DOTALL)


def test_nothing_is_left_of_an_export_that_disagrees_or_meets_a_full_disk(
    place, monkeypatch, tmp_path
):
    out = tmp_path / "out"

    def disagrees(*_: object) -> None:
        raise DataError("computes other logits")

    monkeypatch.setattr("longhaul.run.export.compare", disagrees)
    with pytest.raises(DataError):
        call(monkeypatch, place, "export", "drill", "--out", str(out))
    assert list(tmp_path.iterdir()) == []

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("longhaul.run.export.write_folder", full)
    with pytest.raises(UsageError, match="No space left on device"):
        call(monkeypatch, place, "export", "drill", "--out", str(out))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_no_class_has_brings_its_code_and_begins_a_run(honest, monkeypatch, tmp_path):
    out = tmp_path / "out"
    said = call(monkeypatch, honest.parents[1], "export", "drill", "--out", str(out))
    card = (out / "README.md").read_text()
    for text in (
        "lacks model.activation = gelu)",
        "pip install longhaul",
        "trust_remote_code=True",
    ):
        assert text in said
        assert text in card
    assert 'AutoModelForCausalLM.from_pretrained("PATH", trust_remote_code=True)' in card
    assert "computes the same logits" in said
    begun = begin_with(out, tmp_path, own=())
    assert losses(begun)[2] == pytest.approx(losses(RunFolder(honest))[4], abs=2e-4)
    assert read_segments(begun)[0].weights["family"] == "longhaul"


def test_a_missing_library_is_a_message(place, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"transformers is not installed") as refusal:
        call(monkeypatch, place, "export", "drill")
    assert "longhaul[hf]" in refusal.value.remedy


def test_import_writes_a_recipe_once_and_says_what_to_type(place, monkeypatch, tmp_path):
    call(monkeypatch, place, "export", "drill", "--out", str(tmp_path / "my model"))
    said = call(monkeypatch, tmp_path, "import", "my model")
    assert "longhaul train my-model.toml --data" in said
    call(monkeypatch, tmp_path, "import", "my model")  # again: the same
    (tmp_path / "my-model.toml").write_text("name = 'mine'")
    with pytest.raises(UsageError, match="says something else"):
        call(monkeypatch, tmp_path, "import", "my model")
