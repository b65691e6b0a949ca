import json

import pytest
import typer
from typer.testing import CliRunner

from longhaul.cli import data
from longhaul.config.load import load_recipe
from longhaul.core.errors import DataError, RecipeError
from longhaul.data.prepare import prepare


@pytest.fixture
def call(tmp_path):
    app = typer.Typer(rich_markup_mode=None)
    app.add_typer(data.app, name="data")

    def call(*arguments, code=0):
        given = ["data", "lint", *arguments, "--prepared-dir", str(tmp_path / "prepared")]
        result = CliRunner().invoke(app, given, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.output

    return call


def lines(path, *texts):
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    return str(path)


def test_files_and_recipes_are_looked_at_source_by_source(call, tmp_path):
    leaked = lines(
        tmp_path / "web.jsonl",
        "one\\ntwo\\nthree\\nfour",
        "Nothing wrong with it, so far as one can see.",
    )
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'extends = "quickstart"\n'
        f'[[data.sources]]\npath = "{leaked}"\ntext_field = "body"\n'
        '[[data.sources]]\npath = "synthetic"\n'
    )
    shown = call(str(recipe))
    assert "web.jsonl: 2 documents" in shown
    assert "escaped line ends: 1 of 2 documents (50.00%), 3 in all" in shown
    assert "web.jsonl:1: " in shown
    assert "synthetic: " in shown
    (tmp_path / "clean.txt").write_text("Call me Ishmael. Some years ago, never mind how long.\n")
    shown = call(leaked, str(tmp_path / "clean.txt"), "--text-field", "body")
    assert "escaped line ends: 1 of 2 " in shown
    assert shown.endswith("nothing suspicious\n")


def test_strict_ends_with_3_where_anything_is_found(call, tmp_path):
    leaked = lines(
        tmp_path / "web.jsonl", "one\\ntwo\\nthree\\nfour", "Nothing wrong with it at all."
    )
    clean = lines(tmp_path / "clean.jsonl", "Call me Ishmael. Some years ago, never mind how long.")
    call(leaked, "--text-field", "body")
    call(clean, "--text-field", "body", "--strict")
    assert "escaped line ends" in call(leaked, clean, "--text-field", "body", "--strict", code=3)


def test_texts_are_compared_with_each_other_and_told_apart(call, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    leaked = lines(tmp_path / "a" / "x.jsonl", "one\\ntwo\\nthree\\nfour")
    clean = lines(tmp_path / "b" / "x.jsonl", "Call me Ishmael. Some years ago, never mind it.")
    shown = call(leaked, clean, "--text-field", "body")
    assert "the other sources have 0.00%" in shown
    assert "x.jsonl-1: 1 documents" in shown
    assert "x.jsonl-2: 1 documents" in shown


def test_the_page_is_one_file(call, tmp_path):
    (tmp_path / "clean.txt").write_text("Call me Ishmael. Some years ago, never mind how long.\n")
    page = tmp_path / "page.html"
    assert str(page) in call(str(tmp_path / "clean.txt"), "--html", str(page))
    text = page.read_text(encoding="utf-8")
    assert "Plotly" in text
    assert "clean.txt" in text


def test_text_that_cannot_be_read_is_wrong_data(call, tmp_path):
    with pytest.raises(DataError, match="no such file"):
        call(str(tmp_path / "none.txt"))
    with pytest.raises(DataError, match="broken") as refused:
        call(lines(tmp_path / "web.jsonl", "text in another field"))
    assert refused.value.exit_code == 3
    with pytest.raises(RecipeError):
        call("")


def test_tokens_have_no_text_to_look_at(call, tmp_path):
    (tmp_path / "train.bin").write_bytes(b"\0\1" * 50)
    assert "tokens already" in call(str(tmp_path / "train.bin"))


def test_what_was_prepared_for_a_recipe_is_compared_with_its_checksums(call, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'extends = "quickstart"\ntokenizer.vocab_size = 300\n[[data.sources]]\npath = "synthetic"\n'
    )
    assert "checksums" not in call(str(recipe))
    prepared = prepare(load_recipe(str(recipe)).recipe, tmp_path / "prepared", lambda _: None)
    assert "match their checksums" in call(str(recipe))
    shard = next(prepared.folder.glob("*.shard"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=shard.name) as refused:
        call(str(recipe))
    assert refused.value.exit_code == 3
