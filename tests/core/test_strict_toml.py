"""TOML that nobody vouches for is refused in words, and soon."""

import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from longhaul.config.load import load_recipe, parse_override, shipped_recipes
from longhaul.config.problems import lines_of_settings
from longhaul.core.errors import ExitCode, RecipeError
from longhaul.core.strict import MOST_BYTES, DamagedFile, parse_toml, read_toml
from longhaul.supervise.causes import load_signatures

MANY = 100_000
HOSTILE = {
    "deep lists": "x = " + "[" * MANY + "]" * MANY,
    "deep tables": "x = " + "{a=" * MANY + "1" + "}" * MANY,
    "a dotted key of 100,000 parts": "a" + ".a" * MANY + " = 1",
    "a table of 100,000 parts": "[a" + " . a" * MANY + "]",
    "a quoted key of 100,000 parts": '"a"' + ".'a'" * MANY + " = 1",
    "a deep key behind a text": "x = {'''\n#''' = 0, a" + ".a" * MANY + " = 1}",
    "a deep key behind quotes": 'x = """""""\n[a' + ".a" * MANY + "]",
    "deep by keys in lists": "x = " + ("[{" + "a." * 60 + "a = ") * 30 + "1" + "}]" * 30,
    "5,000 digits": "x = " + "9" * 5000,
    "200 bits": "x = 0x" + "f" * 50,
    "an unclosed text": 'x = """' + '\\"""\n' * MANY,
    "quotes without end": "x = " + '"\\"\'' * MANY,
    "one word": "a" * (MOST_BYTES - 1),
    "dots and nothing": "." * (MOST_BYTES - 1),
    "zeros": "\0" * 4096,
    "an escape sequence": "\x1b]0;x\x07",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_toml_is_refused_in_one_line_that_names_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    with pytest.raises(DamagedFile) as refused:
        read_toml(file)
    assert str(file) in refused.value.message
    assert "\n" not in refused.value.message
    assert "\x1b" not in refused.value.message
    assert len(refused.value.message) < 1000
    for read in (load_recipe, load_signatures):
        with pytest.raises(RecipeError, match="recipe") as wrong:
            read(str(file))  # type: ignore[operator]
        assert wrong.value.exit_code == ExitCode.RECIPE_WRONG


@pytest.mark.parametrize(
    "put",
    [
        lambda path: (path.touch(), os.truncate(path, 8 << 30)),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(bytes(range(256))),
    ],
    ids=["8 GB", "a pipe", "a folder", "/dev/zero", "binary"],
)
def test_what_is_no_file_of_text_is_refused(put: Callable[[Path], object], tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    put(file)
    with pytest.raises(DamagedFile, match="recipe"):
        read_toml(file)
    with pytest.raises(RecipeError, match="recipe"):
        load_recipe(str(file))


def test_what_people_write_is_read_as_ever() -> None:
    for path in shipped_recipes().values():
        assert read_toml(path) == (path.read_text(), tomllib.loads(path.read_text()))
    text = "a.b = [[1, 2], {c = 'x[[[[', d = \"{{{\\\"{\"}] # [[[[\n[e]\nf = '''[\n'''\n"
    assert parse_toml(text, "x") == tomllib.loads(text)
    many = "".join(f'[[node]]\nname = "n{n}"\nssh = "a.b.c.d@n{n}.x.y"\n' for n in range(10_000))
    assert len(parse_toml(many, "x")["node"]) == 10_000


def test_an_option_from_a_strangers_folder_is_read_with_the_same_limits() -> None:
    for value in (HOSTILE["deep lists"], HOSTILE["a dotted key of 100,000 parts"]):
        value = value.removeprefix("x = ")
        assert parse_override(f"a={{{value}}}") == ("a", f"{{{value}}}")


def test_lines_are_found_in_linear_time() -> None:
    """Two kinds of quotes, of which a line-wise reader takes the wrong one for the end."""
    spaces = " " * MANY
    text = f"a = '''\"\"\" \n\"\"\"\n[{spaces}x\n'''\nb = 1\n"
    tomllib.loads(text)
    assert lines_of_settings(text)["b"] == 5
