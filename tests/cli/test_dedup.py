"""`longhaul data dedup` tells what a recipe drops, makes a page, and explains one document."""

import json
import random

import pytest
import typer
from typer.testing import CliRunner

from longhaul.cli.dedup import dedup
from longhaul.core.errors import UsageError

WORDS = [f"word{n}" for n in range(2000)]
BY = random.Random(7)


@pytest.fixture
def call(tmp_path):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(dedup)

    def call(*arguments):
        given = [*arguments, "--prepared-dir", str(tmp_path / "prepared"), "--workers", "1"]
        result = CliRunner().invoke(app, given, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


@pytest.fixture
def recipe(tmp_path):
    first = BY.sample(WORDS, 150)
    second = [*first[:40], *first[41:]]
    texts = {"wiki": [first, BY.sample(WORDS, 90)], "mail": [second, first, BY.sample(WORDS, 80)]}
    written = 'extends = "quickstart"\nname = "mine"\n[data.dedup]\nthreshold = 0.8\n'
    for source, documents in texts.items():
        path = tmp_path / f"{source}.jsonl"
        path.write_text("".join(json.dumps({"text": " ".join(d)}) + "\n" for d in documents))
        written += f'[[data.sources]]\npath = "{path}"\nname = "{source}"\n'
    path = tmp_path / "mine.toml"
    path.write_text(written)
    return str(path)


def test_what_is_dropped_is_told_by_source_and_shown_on_a_page(call, recipe, tmp_path):
    page = tmp_path / "page.html"
    said = call(recipe, "--html", str(page))
    assert (
        "2 documents of 5 dropped (40.00%): 1 exact duplicate, 1 near-duplicate; 1 cluster" in said
    )
    assert "from mail, like one of wiki: 1 exact, 1 near" in said
    assert "largest clusters: 1 of 3 documents" in said
    assert "mine" in page.read_text()
    again = call(recipe)
    assert "signed" not in again, "what was found before was looked for again"
    assert "duplicates.html" in again


def test_one_document_is_explained(call, recipe):
    said = call(recipe, "--explain", "mail.jsonl:1")
    assert "mail.jsonl:1 (mail): dropped; wiki.jsonl:1 (wiki) stays" in said
    assert "Jaccard 0.9" in said
    with pytest.raises(UsageError, match=r"mail\.jsonl:9: no document"):
        call(recipe, "--explain", "mail.jsonl:9")


def test_a_recipe_that_looks_for_none_is_told_how_to(call, recipe):
    with pytest.raises(UsageError, match=r"data.dedup.threshold: the recipe looks for no"):
        # No threshold is the default of a recipe that is not this one.
        call("quickstart", "--set", "data.drop_exact_duplicates=false")
