import re
from contextlib import closing

import pytest
import typer
from typer.testing import CliRunner

from fakes import FakeClock
from longhaul.cli import diagnose
from longhaul.core.errors import RecipeError, UsageError
from longhaul.core.records import Decision, Finding, StepRecord
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.run_spec import resolve_spec, write_run_spec


@pytest.fixture
def call(run):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(diagnose.replay)

    def call(*options):
        runner = CliRunner(env={"COLUMNS": "100"})
        arguments = ["alpha", *options, "--runs-dir", str(run.path.parent)]
        result = runner.invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


@pytest.fixture
def run(tmp_path):
    """A run that explodes from step 201 on and went back once, by hand of an older policy."""
    folder = create_run(tmp_path / "runs" / "alpha", FakeClock())
    write_run_spec(folder, resolve_spec("quickstart", (), None, tmp_path / "prepared"))
    with closing(Journal(folder, 1)) as journal:
        for step in range(1, 231):
            journal.append(
                StepRecord(
                    attempt=1, segment="1.00", step=step, draw=step * 8 - 8, next_draw=step * 8,
                    time=1_000_000.0 + step, loss=6.0 - step / 200 + 0.5 * max(step - 200, 0),
                    gradient_norm=1.0, learning_rate=1e-3, sequences=8, sequence_length=64,
                    states=tuple((at, at * 8, "disk") for at in range(0, step, 25)),
                )
            )  # fmt: skip
        journal.append(
            Finding(
                kind="too-good", severity="warning", attempt=1, segment="1.00", step=230,
                first_step=220, first_draw=0, time=1_000_230.5, subject="web", sentence="Too good.",
            )
        )  # fmt: skip
        back = {"cause": "loss-spike", "actions": ["rollback"], "rollback": {"from": 230, "to": 90}}
        journal.append(
            Decision(
                kind="recover", attempt=1, segment="1.00", step=230, time=1_000_231.0,
                who="policy", reason="because", data=back,
            )
        )  # fmt: skip
    return folder


def test_what_was_done_and_what_would_have_been_stand_side_by_side(call):
    shown = call()
    assert "230 steps judged again" in shown
    assert re.search(r"only live: .* 1\.00 +230  ! too-good \(warning\): Too good\.", shown)
    assert re.search(r"only by these limits: .* 1\.00 ", shown)
    assert "rollback to 90 (−140)" in shown
    assert "skip" in shown
    assert "fewer" in shown


def test_another_policy_is_read_from_a_file(call, tmp_path):
    file = tmp_path / "p.toml"
    file.write_text('[recover]\nladder.loss_spike = [["rollback", "tighten-clip"]]\n')
    assert "tighten-clip" in call("--policy", str(file))


def test_other_detectors_are_read_from_a_file(call, tmp_path):
    file = tmp_path / "d.toml"
    file.write_text("[diagnose]\nloss_spike.least = 1e9\ndivergence.margin = 1e9\n")
    shown = call("--detectors", str(file))
    assert "only by these limits" not in shown
    assert "0 by this policy" in shown


@pytest.mark.parametrize(
    ("text", "error", "word"),
    [
        ("[optim]\nlr = 1.0\n", UsageError, "no table"),
        ("[recover\n", UsageError, "TOML"),
        ("[recover]\nlr_facto = 0.5\n", RecipeError, "lr_factor"),
        ("[recover]\nlr_factor = 1.5\n", RecipeError, "1.5 is not < 1.0 (p.toml:2)"),
        ('[recover]\nladder.loss_spike = [["jump"]]\n', RecipeError, "(p.toml:2)"),
        ('\n[[fallback]]\nname = "calm"\n', RecipeError, "(p.toml:2)"),
        ("fallback = 3\n", RecipeError, "fallback"),
        ("recover = 3\n", UsageError, "recover is no table"),
        ("", UsageError, "is empty"),
        ("\udcff", UsageError, "not UTF-8 text"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(call, tmp_path, text, error, word):
    file = tmp_path / "p.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(error) as refused:
        call("--policy", str(file))
    assert word in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_file_that_is_none_is_named_with_the_reason(call, tmp_path):
    for option in ("--policy", "--detectors"):
        for place, why in ((tmp_path / "no.toml", "No such file"), (tmp_path, "not a plain file")):
            with pytest.raises(UsageError, match=f"{place}: .*{why}"):
                call(option, str(place))


def test_a_byte_order_mark_is_no_mistake(call, tmp_path):
    file = tmp_path / "p.toml"
    file.write_text('\ufeff[recover]\nmode = "report"\n')
    assert "would have done" in call("--policy", str(file))


def test_a_table_that_no_recipe_has_is_refused(call, tmp_path):
    other = tmp_path / "policy.toml"
    other.write_text('[recover]\nmode = "report"\n[recovr]\nmax_recoveries = 1\n')
    with pytest.raises(UsageError, match="recovr is no table of a recipe"):
        call("--policy", str(other))
