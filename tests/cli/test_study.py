"""`longhaul profile`: what a terminal is shown, and what is refused."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from longhaul.cli.entry import application
from longhaul.cli.study import show
from longhaul.core.errors import ExitCode, LonghaulError, RecipeError, UsageError
from longhaul.plan.profile import Profile
from longhaul.plan.roofline import Ceilings
from longhaul.plan.surprises import Seen
from longhaul.plan.timeline import STAGES, HostWait, Operation, Timeline
from longhaul.run.profile.profile import profile
from longhaul.run.train.launch import Start

PRODUCT = Operation("aten::mm", "forward", "head", 0.01, ([64, 64], [64, 64]), ("float", "float"))


def taken(folder: Path, **stages: float) -> Profile:
    """Of two steps of 100 ms, with a read of the host that costs next to nothing."""
    own = dict.fromkeys(STAGES, 0.0) | stages
    timeline = Timeline(2, 0.2, own, [PRODUCT], [HostWait("a.py:1 (item)", "forward", 1e-6)], False)
    device = Ceilings("invented", {"float": 1e12}, ((1_000, 1e-6), (1_000_000, 1e-3)))
    return Profile("<b>mine</b>", timeline, device, Seen(plain_s=0.09, gauge_steps=1), folder)


def test_a_terminal_is_shown_stages_operations_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show(taken(tmp_path, forward=0.06, data=0.08, idle=0.04, monitors=0.02))
    text = capsys.readouterr().out
    assert "A step takes 90 ms on invented: data 40%, forward 30%, idle 20%." in text
    rows = [line.split() for line in text.splitlines()]
    assert ["data", "40", "ms", "40.0%"] in rows
    assert ["communication", "–", "0.0%"] in rows
    assert any(row[:2] == ["mm", "64×64"] for row in rows)
    heads = [line for line in text.splitlines() if line[:2] in ("1.", "2.", "3.", "4.")]
    assert [head.split(": ")[0] for head in heads] == [
        "1. 40 ms a step", "2. 20 ms a step", "3. 10 ms a step", "4. 0.5 µs a step",
    ]  # fmt: skip
    assert "a.py:1 (item)" in heads[3], "a read of the host is named however little it costs here"
    assert "trace.json.gz" in text
    assert "profile.html" in text


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (("quickstrat",), RecipeError, "quickstrat"),
        (("drill", "--steps", "500"), UsageError, "the recipe ends after 300 steps, and 504"),
        (("drill", "--out", "/proc/none"), UsageError, "/proc/none: no folder"),
    ],
)
def test_a_mistake_is_one_message(given: tuple[str, ...], error: type, said: str) -> None:
    ended = CliRunner().invoke(application(), ["profile", *given])
    assert isinstance(ended.exception, error)
    assert said in str(ended.exception)


def test_one_of_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "here"}
    for name, value in (place | {"MASTER_PORT": "1"}).items():
        monkeypatch.setenv(name, value)
    ended = CliRunner().invoke(application(), ["profile", "drill"])
    assert isinstance(ended.exception, UsageError)
    assert "without torchrun" in str(ended.exception)


@pytest.mark.parametrize(
    ("code", "error"),
    [(ExitCode.INTERRUPTED, KeyboardInterrupt), (ExitCode.FINISHED, LonghaulError)],
)
def test_training_that_ends_early_leaves_no_profile(
    code: ExitCode, error: type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("longhaul.run.profile.profile.start", lambda typed, view: code)
    with pytest.raises(error):
        profile(Start("drill"), 10, tmp_path / "out", print)
    assert not list((tmp_path / "out").iterdir())
