import pytest
from typer.testing import CliRunner

from longhaul.cli.drill import _seconds
from longhaul.cli.main import app
from longhaul.core.errors import RecipeError, UsageError


def asked(*words: str):
    return CliRunner().invoke(app, ["drill", *words])


def test_the_help_names_a_drill_of_ones_own_beside_the_others() -> None:
    output = asked("--help").output
    for name in ("RECIPE", "resume", "numbers", "recovery", "replicas"):
        assert f"  {name}" in output


@pytest.mark.parametrize(
    "words", [("quickstart", "--help"), ("--steps", "30", "quickstart", "--help")]
)
def test_a_first_word_that_is_no_command_is_a_recipe(words: tuple[str, ...]) -> None:
    output = asked(*words).output
    assert "--fault NAME[:STRENGTH]@rankR:stepS" in output
    assert output.startswith("Usage: ")
    assert "RECIPE [OPTIONS]\n" in output


def test_the_other_drills_are_found_as_ever() -> None:
    assert "--kills" in asked("resume", "--help").output
    assert "--blind" in asked("numbers", "--help").output


def test_a_slip_is_no_traceback() -> None:
    assert isinstance(asked("resme").exception, RecipeError)
    assert isinstance(asked("drill", "--fault", "kil@rank0:step3").exception, UsageError)
    assert isinstance(asked("drill", "--soak", "long").exception, UsageError)


@pytest.mark.parametrize(
    ("text", "seconds"), [("20s", 20), ("10m", 600), ("0.5h", 1800), ("45", 45)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert _seconds("--soak", text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-3s", "ten", "3d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--soak"):
        _seconds("--soak", text)
