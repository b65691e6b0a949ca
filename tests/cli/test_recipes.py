import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from longhaul.cli.entry import application


def run(*arguments: str) -> str:
    ended = CliRunner().invoke(application(), arguments)
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_shipped_recipes_are_listed_with_what_they_are() -> None:
    listed = run("recipes")
    for name in ("quickstart", "shakespeare-char", "gpt2-124m"):
        assert name in listed


def test_a_recipe_shows_every_value_where_it_came_from_and_its_size() -> None:
    shown = run("recipe", "show", "gpt2-124m", "--set", "optim.lr=1e-4")
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert lines["optim.lr"].endswith("--set optim.lr=1e-4")
    assert "gpt2-124m.toml:" in lines["model.layers"]
    assert lines["optim.eps"].endswith("default")
    assert lines["data.sources.0.path"].endswith("gpt2-124m.toml:8")
    assert "total 124,475,904 (124M)" in shown
    assert "FLOPs a token" in shown


def test_a_size_that_depends_on_the_text_says_so() -> None:
    assert "the text decides how many" in run("recipe", "show", "shakespeare-char")


def test_the_schema_describes_every_setting() -> None:
    schema = json.loads(run("recipe", "schema"))
    assert schema["$defs"]["OptimSection"]["properties"]["lr"]["description"]


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["recipes"]])
def test_help_and_lists_import_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys; sys.argv = ['longhaul', *sys.argv[1:]]\n"
        "from longhaul.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'rich.live', 'duckdb', 'pyarrow', 'fsspec', 'tokenizers'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "heavy: []"
