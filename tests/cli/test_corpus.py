import json

import pytest
import typer
from typer.testing import CliRunner

from longhaul.cli import data


@pytest.fixture
def call(tmp_path):
    app = typer.Typer(rich_markup_mode=None)
    app.add_typer(data.app, name="data")

    def call(*arguments):
        given = ["data", *arguments, "--prepared-dir", str(tmp_path / "prepared")]
        result = CliRunner().invoke(app, given, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


def lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def test_a_classifier_is_trained_and_a_recipe_filters_by_it(call, tmp_path, capfd):
    good = lines(
        tmp_path / "good.jsonl", [f"The river rose by {n} feet that day." for n in range(40)]
    )
    bad = lines(tmp_path / "bad.jsonl", [f"Buy {n} cheap watches now!" for n in range(40)])
    model = tmp_path / "quality.safetensors"
    shown = call("classifier", good, bad, "-o", str(model))
    assert "good: 40 documents, 40 taken" in shown
    assert "area under the ROC curve 1.000" in shown
    web = lines(tmp_path / "web.jsonl", ["That day the river rose.", "Cheap watches, buy now!"])
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'extends = "quickstart"\n[[data.sources]]\npath = "{web}"\n'
        f'[data.filters]\nclassifier = "{model}"\n'
    )
    shown = call("clean", str(recipe))
    assert "web.jsonl: 2 documents (47 B); 1 stay (50.0%), 24 B" in shown
    assert "web.jsonl:2: Cheap watches, buy now!" in shown
    assert not (tmp_path / "prepared").exists()


def test_tokens_have_no_text_to_clean(call, tmp_path):
    (tmp_path / "train.bin").write_bytes(b"\0\1" * 50)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'extends = "quickstart"\n[[data.sources]]\npath = "{tmp_path / "train.bin"}"\n'
    )
    assert "tokens already" in call("clean", str(recipe))
