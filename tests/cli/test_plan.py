import json

import pytest
import typer
from typer.testing import CliRunner

from fakes import FakeClock
from longhaul.cli import plan as commands
from longhaul.core.devices import device_named
from longhaul.core.errors import UsageError
from longhaul.core.records import Event, StepRecord
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.run_spec import resolve_spec, write_run_spec
from longhaul.parallel.layout import Layout
from longhaul.plan.step_time import Rates, StepModel

EFFICIENCY = 0.43


@pytest.fixture
def call(tmp_path):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(commands.plan)

    def call(*arguments):
        given = [*arguments, "--runs-dir", str(tmp_path / "runs")]
        result = CliRunner(env={"COLUMNS": "100"}).invoke(app, given, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


@pytest.fixture
def run(tmp_path):
    """The journal of a run that took what the roofline gives at an efficiency of 0.43."""
    folder = create_run(tmp_path / "runs" / "timed", FakeClock())
    options = ('precision.compute="bf16"', "batch.micro_sequences=8")
    asked = resolve_spec("overnight-3090", options, None, tmp_path / "prepared")
    write_run_spec(folder, asked)
    recipe, rates = asked.settings(), Rates.of(device_named("3090"), "bf16", EFFICIENCY)
    predicted = StepModel(recipe, 50_257, Layout(), rates, 8)
    journal = Journal(folder, 1)
    hardware = {"name": "NVIDIA GeForce RTX 3090", "count": 1}
    journal.append(
        Event(kind="attempt-started", attempt=1, time=1e6, data={"hardware": hardware})
    )  # fmt: skip
    for step in range(1, 21):
        journal.append(
            StepRecord(
                attempt=1, segment="1.00", step=step, draw=step, next_draw=step + 1,
                time=1e6 + step, loss=1.0, gradient_norm=1.0, learning_rate=1e-3, sequences=8,
                sequence_length=64, seconds={"training": predicted.step_time().total},
            )
        )  # fmt: skip
    journal.close()
    return "timed"


def test_a_plan_for_a_cluster_names_layouts_money_and_failures(call):
    said = call("opt-175b", "--gpus", "1024", "--gpu", "a100-80", "--price", "2")
    for expected in ("opt-175b on 1024 × a100-80", "layouts fit", "train it so: --set parallel.",
                     "money: ", "energy: ", "spare nodes: ", "goodput: ", "[assumed",
                     "[published"):  # fmt: skip
        assert expected in said


def test_every_number_for_programs_has_its_basis(call):
    body = json.loads(call("llama-8b", "--gpus", "64", "--gpu", "h100", "--json"))
    for line in [*body["model"], body["efficiency"], *body["bill"], *body["layouts"]]:
        assert line["basis"] in ("measured", "published", "assumed")
    assert len(body["layouts"]) == 5 <= body["layouts_that_fit"]
    first = body["layouts"][0]
    assert sum(first["parts_s"].values()) == pytest.approx(first["step_s"])
    assert sum(first["memory_bytes"].values()) == first["memory_total_bytes"] <= 80e9


def test_a_run_calibrates_its_device_for_the_next_plan(call, run, tmp_path):
    first = json.loads(call("overnight-3090", "--gpu", "3090", "--json"))
    assert first["efficiency"]["basis"] == "assumed"
    assert {one["basis"] for one in first["bill"] if one["name"] == "step time"} == {"assumed"}
    options = ("--gpu", "3090", "--set", "precision.compute=bf16", "--json")
    fit = json.loads(call("overnight-3090", *options, "--calibrate", run))["efficiency"]
    assert fit["basis"] == "measured"
    assert fit["value"] == pytest.approx(EFFICIENCY, rel=1e-3)
    assert "run timed, 20 steps" in fit["source"]
    assert (tmp_path / "runs" / "calibration.json").exists()
    later = json.loads(call("overnight-3090", *options))
    assert later["efficiency"]["value"] == fit["value"]
    assert {one["basis"] for one in later["bill"] if one["name"] == "step time"} == {"measured"}


def test_a_run_on_another_device_calibrates_nothing(call, run):
    with pytest.raises(UsageError, match="trained on NVIDIA GeForce RTX 3090, not on a100-80"):
        call("overnight-3090", "--gpu", "a100-80", "--calibrate", run)
    with pytest.raises(UsageError, match="nobody"):
        call("overnight-3090", "--gpu", "3090", "--calibrate", "nobody")


def test_a_mistake_names_the_way_out(call):
    with pytest.raises(UsageError, match="--gpus: 12 is no multiple of the 8") as raised:
        call("llama-8b", "--gpu", "h100", "--gpus", "12")
    assert raised.value.remedy == "give 8 or 16"
    with pytest.raises(UsageError, match="h10 is not a known device"):
        call("llama-8b", "--gpu", "h10")
    with pytest.raises(UsageError, match="has no units for fp8"):
        call("llama-8b", "--gpu", "a100", "--gpus", "8", "--set", "precision.float8=true")


def test_a_laptop_plans_for_itself(call):
    body = json.loads(call("quickstart", "--set", "machine.device=cpu", "--json"))
    assert body["device"]["basis"] == "measured"
    assert body["device"]["key"].startswith("cpu")
    assert body["gpus"] == 1
    assert 0 < body["layouts"][0]["step_s"] < 60


def test_where_the_recipe_leaves_the_format_open_a_calibrated_one_is_planned(call, run):
    options = ("--gpu", "3090", "--set", 'precision.compute="auto"', "--json")
    assert json.loads(call("overnight-3090", *options))["element"] == "bf16"
    path = commands.RUNS / "none"
    assert not path.exists()
    calibrated = json.loads(call("overnight-3090", *options, "--calibrate", run))
    assert calibrated["element"] == "bf16"
    assert calibrated["efficiency"]["basis"] == "measured"
