"""`longhaul.train`: what the command does, with exceptions and a run instead of exit codes."""

import inspect
import io
import signal
import subprocess
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import longhaul
from longhaul.config.load import parse_override
from longhaul.core.errors import ExitCode
from longhaul.run import started
from small_runs import FEW_HELD_OUT

TINY = {
    "data.held_out.fraction": float(FEW_HELD_OUT.partition("=")[2]),
    "optim": {"schedule.warmup_steps": 0},
    "model": {"width": 16, "layers": 1},
    "checkpoint": {"interval_steps": 10_000},
    "batch": {"stages": []},
    "evaluation.tokens": 1024,
    "sample.tokens": 4,
}


@pytest.fixture
def train(tmp_path: Path, prepared: Path):
    def train(recipe="drill", **options):
        where = {"runs_dir": tmp_path / "runs", "prepared_dir": prepared}
        return longhaul.train(recipe, **where, **(TINY if recipe == "drill" else {}) | options)

    return train


def test_a_run_is_trained_and_its_output_is_printed(train, tmp_path: Path) -> None:
    shown = io.StringIO()
    with redirect_stdout(shown):
        run = train(train={"steps": 2})
    assert run.path == tmp_path / "runs" / "drill"
    assert repr(run).startswith("run drill: finished, step 2/2, validation loss ")
    assert run.settings()["optim"]["schedule"]["warmup_steps"] == 0
    assert "finished: 2 steps" in shown.getvalue()


def test_an_interrupt_saves_and_a_second_call_goes_on(train, tmp_path: Path) -> None:
    """As a notebook's stop button: it raises KeyboardInterrupt in the main thread alone."""
    interrupted = []

    def say(line: str) -> None:
        if line.startswith("step ") and not interrupted:
            interrupted.append(line)
            raise KeyboardInterrupt

    with pytest.raises(longhaul.RunStopped) as stopped:
        train(**{"train.steps": 10_000}, say=say)
    assert stopped.value.exit_code == ExitCode.INTERRUPTED
    assert stopped.value.remedy
    (saved,) = longhaul.open(tmp_path / "runs" / "drill").checkpoints()[-1:]
    run = train(**{"train.steps": saved.step + 1}, say=lambda line: None)
    assert run.summary().state == "finished"
    again = run.query("SELECT step FROM steps WHERE attempt > 1")["step"].to_pylist()
    assert again == [saved.step + 1]


def test_it_trains_on_a_thread_where_no_handler_can_be_set(train) -> None:
    before = signal.getsignal(signal.SIGINT)
    found = []

    def body() -> None:
        found.append(train(**{"train.steps": 1}, say=lambda line: None).summary().step)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found == [1]
    assert signal.getsignal(signal.SIGINT) is before


def test_mistakes_carry_the_message_the_way_out_and_the_exit_code(train, tmp_path: Path) -> None:
    said = []
    with pytest.raises(longhaul.RecipeError) as wrong:
        train(optim={"lrr": 1.0}, say=said.append)
    assert "optim.lrr" in str(wrong.value)
    assert "lr" in str(wrong.value)
    assert not any("Traceback" in line for line in said)
    with pytest.raises(longhaul.RecipeError, match=r"quickstrat") as unknown:
        train("quickstrat", say=said.append)
    assert "quickstart" in unknown.value.message
    (tmp_path / "empty.txt").touch()
    with pytest.raises(longhaul.DataError) as empty:
        train("quickstart", data=tmp_path / "empty.txt", say=said.append)
    assert empty.value.exit_code == ExitCode.DATA_WRONG


def test_settings_are_nested_tables_or_dotted_names() -> None:
    given = {
        "train": {"steps": 2}, "optim.lr": 1e-5, "machine.compile": False,
        "tokenizer.kind": "bytes",
        "data": {"sources": [{"path": Path("a b"), "weight": 2}]}, "checkpoint.remote": ("s3://x",),
    }  # fmt: skip
    assert dict(map(parse_override, started.options_from(given))) == {
        "train.steps": 2, "optim.lr": 1e-5, "machine.compile": False, "tokenizer.kind": "bytes",
        "data.sources": [{"path": "a b", "weight": 2}], "checkpoint.remote": ["s3://x"],
    }  # fmt: skip
    with pytest.raises(longhaul.RecipeError, match=r"optim\.lr: None"):
        list(started.options_from({"optim": {"lr": None}}))


def test_importing_longhaul_imports_neither_torch_nor_the_command() -> None:
    code = (
        "import sys, longhaul; longhaul.train, longhaul.open, longhaul.Run, longhaul.__version__; "
        "print([m for m in ('torch', 'typer', 'duckdb', 'rich') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
    code = "import sys, longhaul; print(len([m for m in sys.modules if 'longhaul' in m]))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "1"


def test_the_function_is_the_package_of_the_trainer_too() -> None:
    import longhaul.train.orders

    assert inspect.signature(longhaul.train) == inspect.signature(started.train)
    assert longhaul.train.orders.WriteSample
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = longhaul.trian
    assert all(hasattr(longhaul, name) for name in longhaul.__all__)
    assert set(longhaul.__all__) <= set(dir(longhaul))
