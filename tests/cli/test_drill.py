import pytest
from typer.testing import CliRunner

from longhaul.cli.drill import seconds_in
from longhaul.cli.entry import application
from longhaul.core.errors import RecipeError, UsageError


def asked(*words: str):
    return CliRunner().invoke(application(), ["drill", *words])


def test_the_help_says_how_a_fault_is_written() -> None:
    output = asked("--help").output
    assert "--fault NAME[:STRENGTH]@rankR:stepS" in output
    assert "RECIPE" in output
    assert "--trust" in output


def test_a_slip_is_no_traceback() -> None:
    assert isinstance(asked("resme").exception, RecipeError)
    assert isinstance(asked("drill", "--fault", "kil@rank0:step3").exception, UsageError)
    assert isinstance(asked("drill", "--soak", "long").exception, UsageError)


@pytest.mark.parametrize(
    ("text", "seconds"), [("20s", 20), ("10m", 600), ("0.5h", 1800), ("45", 45)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert seconds_in("--soak", text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-3s", "ten", "3d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--soak"):
        seconds_in("--soak", text)
