import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from fakes import FakeClock
from longhaul.cli import runs as commands
from longhaul.core.clocks import RealClock
from longhaul.core.errors import UsageError
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import acquire
from longhaul.logbook.run_spec import resolve_spec, write_run_spec
from longhaul.logbook.segments import SegmentNumber, SegmentOpening, open_segment


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def call(runs):
    app = typer.Typer(rich_markup_mode=None)
    for name in ("runs", "log", "tree", "diff", "compact"):
        app.command()(getattr(commands, name))

    def call(*arguments):
        result = CliRunner(env={"COLUMNS": "80"}).invoke(
            app, [*arguments, "--runs-dir", str(runs)], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output

    return call


@pytest.fixture
def run(runs, tmp_path):
    """Two segments: a learning rate was lowered by hand at step 3, then everything died."""
    folder = create_run(runs / "alpha", FakeClock())
    asked = resolve_spec("quickstart", ("optim.lr=3e-3",), None, tmp_path / "prepared")
    write_run_spec(folder, asked)
    settings = asked.settings().model_dump(mode="json")
    lowered = {**settings, "optim": {**settings["optim"], "lr": 1e-3}}
    first, second = SegmentNumber(1, 0), SegmentNumber(1, 1)
    opening = {"attempt": 1, "draw": 0, "nodes": ("n1",), "opened": 1_000_000.0}
    open_segment(
        folder,
        SegmentOpening(
            number=first, step=0, reason="first start", settings=settings,
            fingerprint={"torch": {"threads": 2}, "data": {"shards": "ab"}}, **opening,
        ),
    )  # fmt: skip
    open_segment(
        folder,
        SegmentOpening(
            number=second, parent=first, step=3, reason="set optim.lr by anna: spikes [see note]",
            difference={"optim.lr": (3e-3, 1e-3)}, settings=lowered,
            fingerprint={"torch": {"threads": 4}, "data": {"shards": "ab"}}, **opening,
        ),
    )  # fmt: skip
    journal = Journal(folder, 1)
    at = {"attempt": 1, "segment": "1.00"}
    started = {"pid": 7, "host": "n1", "total_steps": 300}
    journal.append(Event(kind="attempt-started", time=1_000_000.0, data=started, **at))
    for step in range(1, 6):
        journal.append(
            StepRecord(
                attempt=1,
                segment="1.00" if step < 4 else "1.01",
                step=step,
                draw=0,
                next_draw=8,
                time=1_000_000.0 + 2 * step,
                loss=5.0 - step,
                gradient_norm=1.0,
                learning_rate=3e-3 if step < 4 else 1e-3,
                sequences=8,
                sequence_length=64,
                seconds={"training": 2.0},
            )
        )
    journal.append_durably(
        Decision(
            kind="set", step=3, time=1_000_006.5, who="anna", reason="spikes",
            data={"path": "optim.lr", "value": 1e-3, "old": 3e-3}, **at,
        )
    )  # fmt: skip
    journal.close()
    return folder


def test_runs_shows_every_run_and_its_state(call, run, runs):
    create_run(runs / "beta", FakeClock())
    output = call("runs")
    alpha = next(line.split() for line in output.splitlines() if line.startswith("alpha"))
    assert alpha[1:7] == ["dead", "5/300", "0.0000", "–", "2", "100%"]
    assert "beta" in output
    assert max(map(len, output.splitlines())) <= 80
    acquire(run, RealClock())
    assert "live" in call("runs")


def test_a_broken_run_does_not_hide_the_others(call, run, runs):
    broken = create_run(runs / "broken", FakeClock())
    (broken.journal / "000001.pilot.events.jsonl").mkdir()
    lines = call("runs").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["alpha", "dead"], ["broken", "unreadable"]]


def test_no_runs_says_how_to_start_one(call):
    assert "longhaul train" in call("runs")


def test_log_ends_with_the_last_record(call, run):
    lines = call("log", "alpha", "--last", "3").splitlines()
    assert ["anna set optim.lr 0.003 → 0.001: spikes" in line for line in lines] == [
        True, False, False,
    ]  # fmt: skip
    assert "loss 0.0000" in lines[-1]
    assert "loss" not in call("log", "alpha", "--events")


def test_tree_tells_what_each_segment_went_on_from_and_how_it_ended(call, run):
    output = call("tree", "alpha")
    for text in (
        "1.00 first start", "steps 1–3 · loss 2.0000 · lr 3.00e-03 · 6.0 s", "went on as 1.01",
        "1.01 set optim.lr by anna: spikes [see note]", "optim.lr: 0.003 → 0.001", "died",
        "steps 4–5",
    ):  # fmt: skip
        assert text in output
    assert max(map(len, output.splitlines())) <= 80


def test_diff_compares_the_last_two_segments_and_the_recipe_with_now(call, run):
    output = call("diff", "alpha")
    before, now = output.split("recipe → now")
    assert "segment 1.00 → 1.01" in before
    assert "  optim.lr: 0.003 → 0.001" in before
    assert "torch:\n  threads: 2 → 4" in before
    assert "data: the same" in before
    assert "  optim.lr: 0.003 → 0.001\n    set by anna at step 3: spikes" in now
    assert call("diff", "alpha", "1.00", "1.01") == output
    assert "  optim.lr: 0.001 → 0.003" in call("diff", "alpha", "1.01", "1.00")


def test_diff_shows_what_the_optimizer_held_names_included(call, run):
    journal = Journal(run, 2)
    live = {"name": "adamw", "clip": 1.0, "matrix.lr": 1e-3}
    journal.append(
        Event(kind="settings-read-back", attempt=2, step=5, time=2e6, data={"live": live})
    )
    journal.close()
    output = call("diff", "alpha")
    assert "all: name adamw, clip 1" in output
    assert "matrix: lr 0.001" in output


def test_diff_works_where_the_recipe_is_gone(call, run):
    (run.path / "asked.json").unlink()
    assert "the recipe cannot be compared" in call("diff", "alpha")


def test_diff_of_unknown_segments_and_runs_is_a_message(call, run):
    with pytest.raises(UsageError, match=r"1\.00, 1\.01"):
        call("diff", "alpha", "1.07")
    with pytest.raises(UsageError, match="did you mean alpha"):
        call("tree", "alpah")


def test_diff_before_the_first_segment_is_a_message(call, runs):
    create_run(runs / "beta", FakeClock())
    with pytest.raises(UsageError, match="no segments yet"):
        call("diff", "beta")


def test_compact_says_what_it_did(call, run):
    assert "compacted attempts 1" in call("compact", "alpha")
    assert "nothing left" in call("compact", "alpha")
    assert "steps 4–5" in call("tree", "alpha")


def test_help_does_not_pay_for_tables_and_queries():
    code = (
        "import sys; import longhaul.cli.runs; "
        "print([m for m in ('rich.table', 'duckdb', 'torch', 'pydantic') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
