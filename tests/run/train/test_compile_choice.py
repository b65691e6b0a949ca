"""`machine.compile = "auto"` through whole runs, within this process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fakes import SilentView
from longhaul.core.errors import ExitCode
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.logbook.segments import read_segments
from longhaul.run.train.launch import Start, start
from longhaul.train import compile_choice
from longhaul.train.compile_choice import Choice, Compiled, Work
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "batch.sequences=4", "batch.micro_sequences=2",
    "batch.stages=[]", "evaluation.tokens=256", "evaluation.interval_steps=0",
    "optim.schedule.warmup_steps=0", "optim.schedule.shape=constant", "model.dropout=0.1",
)  # fmt: skip
AUTO = "machine.compile=auto"


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs, without generating code, which a machine may lack a compiler for."""
    plain = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda model, **_: plain(model, backend="aot_eager", dynamic=False)
    )
    monkeypatch.setattr(compile_choice, "refuse_without_compiler", lambda *_: None)
    monkeypatch.setattr("longhaul.run.train.run_attempt.refuse_without_compiler", lambda *_: None)
    monkeypatch.setattr("longhaul.run.train.build.keep_code", lambda *_: "")
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> list[bool | str]:
    """What is chosen from now on, after measuring."""
    values: list[bool | str] = []

    def choose(
        work: Work,
        eager_s: float,
        measure: Callable[[], Compiled],
        measure_graphs: Callable[[], Compiled | str] | None,
    ) -> Choice:
        assert work.passes > 0
        assert eager_s > 0
        assert measure().compile_s > measure().pass_s > 0
        if measure_graphs is not None:
            graphs = measure_graphs()
            assert isinstance(graphs, Compiled)
            assert graphs.pass_s > 0
        return Choice(values.pop(0), "it was measured")

    monkeypatch.setattr(compile_choice, "choose", choose)
    return values


class Runs:
    def __init__(self, path: Path, prepared: Path) -> None:
        self.path, self.prepared, self.said = path, prepared, ""

    def train(self, steps: int, *options: str, name: str = "runs") -> RunFolder:
        torch.compiler.reset()  # as in a process of its own
        view = SilentView()
        typed = Start("drill", (*TINY, f"train.steps={steps}", *options), runs=self.path / name,
                      prepared=self.prepared)  # fmt: skip
        assert start(typed, view) is ExitCode.FINISHED
        self.said = "\n".join(view.said)
        return RunFolder(self.path / name / "drill")


@pytest.fixture
def runs(tmp_path: Path, prepared: Path) -> Runs:
    return Runs(tmp_path, prepared)


def losses(folder: RunFolder) -> list[float]:
    return [r.loss for r in read_journal(folder) if isinstance(r, StepRecord)]


def in_force(folder: RunFolder) -> object:
    return read_segments(folder)[-1].settings["machine"]["compile"]


def decisions(folder: RunFolder) -> list[str]:
    made = [r for r in read_journal(folder) if isinstance(r, Decision)]
    return [r.kind for r in made if r.data.get("path") == "machine.compile"]


@pytest.mark.parametrize(("chosen", "said"), [(True, "on"), (False, "off")])
def test_measuring_changes_no_bit_of_training_and_the_choice_is_kept(
    runs: Runs, choosing: list[bool], chosen: bool, said: str
) -> None:
    choosing.append(chosen)
    folder = runs.train(3, AUTO)
    assert f"compile: {said}; it was measured" in runs.said
    assert in_force(folder) is chosen
    as_asked = runs.train(3, f"machine.compile={str(chosen).lower()}", name="asked")
    assert losses(folder) == losses(as_asked)
    runs.train(5, AUTO)  # nothing is left to be chosen: another measurement would fail
    assert "compile: " not in runs.said
    assert in_force(folder) is chosen
    assert decisions(folder) == ["set"]
    events = [r for r in read_journal(folder) if isinstance(r, Event) and r.kind == "compiled"]
    assert [event.step for event in events] == ([1, 4] if chosen else [])


def test_passes_that_are_graphs_train_alike_and_elsewhere_the_run_goes_on_without(
    runs: Runs, choosing: list[bool | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU has none: what is around them is tried."""
    for module in ("train.compile_choice", "run.train.run_attempt"):
        monkeypatch.setattr(f"longhaul.{module}.has_graphs", lambda _: True)
    choosing.append("cuda-graphs")
    folder = runs.train(3, AUTO)
    assert "compile: on, with CUDA graphs; it was measured" in runs.said
    assert in_force(folder) == "cuda-graphs"
    runs.train(4, AUTO)
    monkeypatch.setattr("longhaul.run.train.run_attempt.has_graphs", lambda _: False)
    runs.train(5, AUTO)
    assert in_force(folder) is True
    assert decisions(folder) == ["set", "set"]
    assert losses(folder) == losses(runs.train(5, "machine.compile=true", name="asked"))


def test_a_recipe_that_says_itself_ends_the_choice_and_auto_takes_it_up_again(
    runs: Runs, choosing: list[bool]
) -> None:
    choosing.append(True)
    folder = runs.train(2, AUTO)
    runs.train(3, "machine.compile=false")
    assert in_force(folder) is False
    runs.train(4, AUTO)
    assert in_force(folder) is True
    assert decisions(folder) == ["set", "unset", "set"]


def test_a_short_run_is_not_compiled_for_its_own_sake(runs: Runs) -> None:
    folder = runs.train(3, AUTO)
    assert "compile: off; the run would take about" in runs.said
    assert in_force(folder) is False
