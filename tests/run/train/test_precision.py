"""`precision.compute = "auto"` through whole runs, within this process."""

import json
from pathlib import Path

import pytest

from fakes import SilentView
from longhaul.config.load import load_recipe, with_overrides
from longhaul.core.errors import ExitCode
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import read_run_spec
from longhaul.logbook.segments import read_segments
from longhaul.run.train.launch import Start, start
from longhaul.train import precision
from longhaul.train.precision import FLOAT32, Choice, Format
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "batch.sequences=4", "batch.stages=[]",
    "evaluation.tokens=256", "evaluation.interval_steps=0", "optim.schedule.warmup_steps=0",
    "optim.schedule.shape=constant",
)  # fmt: skip
AUTO, BF16 = "precision.compute=auto", "bf16"


@pytest.fixture
def fastest(monkeypatch: pytest.MonkeyPatch) -> list[Format]:
    """What measurements find from now on, one value each."""
    values: list[Format] = []
    monkeypatch.setattr(
        precision, "fastest_format", lambda device, recipe: Choice(values.pop(0), "four times")
    )
    return values


class Runs:
    def __init__(self, path: Path, prepared: Path) -> None:
        self.path, self.prepared, self.said = path, prepared, ""

    def train(self, steps: int, *options: str) -> RunFolder:
        view = SilentView()
        typed = Start("drill", (*TINY, f"train.steps={steps}", *options), runs=self.path,
                      prepared=self.prepared)  # fmt: skip
        assert start(typed, view) is ExitCode.FINISHED
        self.said = "\n".join(view.said)
        return RunFolder(self.path / "drill")


@pytest.fixture
def runs(tmp_path: Path, prepared: Path) -> Runs:
    return Runs(tmp_path, prepared)


def in_force(folder: RunFolder) -> str:
    """Of the ledger, which must be what the newest segment records."""
    ledger, _ = load_ledger(folder)
    effective = with_overrides(read_run_spec(folder).settings(), ledger.overrides_at(0))
    assert read_segments(folder)[-1].settings == effective.model_dump(mode="json")
    return effective.precision.compute


def events(folder: RunFolder, kind: str) -> list[Event]:
    return [r for r in read_journal(folder) if isinstance(r, Event) and r.kind == kind]


def as_if_on_another_machine(folder: RunFolder) -> None:
    path = folder.segments / "1.00/settings.json"
    body = json.loads(path.read_text())
    body["fingerprint"]["torch"]["cpu_capability"] = "another"
    path.write_text(json.dumps(body))


def test_auto_is_what_a_recipe_means_that_does_not_say_otherwise() -> None:
    assert load_recipe("quickstart").recipe.precision.compute == "auto"
    assert load_recipe("drill").recipe.precision.compute == "float32"


@pytest.mark.parametrize("chosen", [FLOAT32, BF16])
def test_what_was_measured_is_said_and_decided_before_the_model_is_built(
    runs: Runs, fastest: list[Format], chosen: Format
) -> None:
    fastest.append(chosen)
    folder = runs.train(3, AUTO)
    assert in_force(folder) == chosen
    assert runs.said.index(f"precision: {chosen}; four times") < runs.said.index("model: ")
    first = next(iter(read_journal(folder, steps=False)))
    assert isinstance(first, Decision)
    assert first.data == {"path": "precision.compute", "value": chosen, "old": "auto"}


def test_tf32_is_decided_with_it_and_the_format_is_float32(
    runs: Runs, fastest: list[Format]
) -> None:
    fastest.append("TF32")
    folder = runs.train(3, AUTO)
    settings = read_segments(folder)[-1].settings["precision"]
    assert (settings["compute"], settings["tf32"]) == ("float32", True)


def test_a_resumed_run_measures_nothing_on_the_same_machine(
    runs: Runs, fastest: list[Format]
) -> None:
    fastest += [BF16, FLOAT32]
    runs.train(3, AUTO)
    assert in_force(runs.train(5, AUTO)) == "bf16"
    assert fastest == [FLOAT32]


def test_another_machine_that_would_choose_otherwise_says_so_and_keeps_it(
    runs: Runs, fastest: list[Format]
) -> None:
    fastest += [BF16, FLOAT32]
    as_if_on_another_machine(runs.train(3, AUTO))
    folder = runs.train(5, AUTO)
    assert in_force(folder) == "bf16"
    assert "this machine would compute in float32 (four times); the run keeps bf16" in runs.said
    assert [event.data["kept"] for event in events(folder, "precision-kept")] == ["bf16"]


def test_another_machine_that_would_choose_alike_has_nothing_to_say(
    runs: Runs, fastest: list[Format]
) -> None:
    fastest += [BF16, BF16]
    as_if_on_another_machine(runs.train(3, AUTO))
    folder = runs.train(5, AUTO)
    assert not events(folder, "precision-kept")
    assert not fastest


def test_a_format_in_the_recipe_ends_the_choice_and_auto_takes_it_up_again(
    runs: Runs, fastest: list[Format]
) -> None:
    fastest += [BF16]
    runs.train(3, AUTO)
    assert in_force(runs.train(5, "precision.compute=float32")) == "float32"
    assert in_force(runs.train(7, AUTO)) == "bf16"


def test_a_run_of_before_there_was_a_choice_goes_on_in_float32(
    runs: Runs, fastest: list[Format]
) -> None:
    """Its `asked.json` left the format out, which meant float32 then."""
    folder = runs.train(3)
    path = folder.path / "asked.json"
    body = json.loads(path.read_text())
    del body["defaults"], body["values"]["precision"]
    path.write_text(json.dumps(body))
    assert read_run_spec(folder).settings().precision.compute == "float32"
    folder = runs.train(5, AUTO)  # a recipe that leaves it out says auto now
    assert (in_force(folder), fastest) == ("float32", [])
    assert "precision: float32, in which this run has trained so far" in runs.said


def test_muon_s_products_are_settled_by_the_same_measurement(
    runs: Runs, fastest: list[Format]
) -> None:
    """Which format they have must not change when the run goes on on another processor."""
    fastest.append(FLOAT32)
    folder = runs.train(3, AUTO, "optim.name=muon")
    assert read_segments(folder)[-1].settings["optim"]["muon"]["newton_schulz"] == "float32"


def test_a_run_in_float8_goes_on_with_the_same_bits(tmp_path: Path, prepared: Path) -> None:
    def losses(runs: Runs) -> list[float]:
        folder = RunFolder(runs.path / "drill")
        return [r.loss for r in read_journal(folder, events=False) if isinstance(r, StepRecord)]

    whole, twice, exact = (Runs(tmp_path / name, prepared) for name in ("whole", "twice", "exact"))
    whole.train(8, "precision.float8=true")
    twice.train(3, "precision.float8=true")
    twice.train(8, "precision.float8=true")
    exact.train(8)
    assert losses(whole) == losses(twice) != losses(exact)
    assert losses(whole) == pytest.approx(losses(exact), rel=0.02)
