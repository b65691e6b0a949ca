"""`longhaul preflight` with its processes: layouts that are sound and broken, and all of it."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fork_server import SERVER
from longhaul.config.load import load_recipe
from longhaul.core.errors import ExitCode
from longhaul.logbook.folder import RunFolder
from longhaul.run.preflight.context import Preflight, PreflightContext, small_world
from longhaul.run.preflight.layouts import check_layouts
from longhaul.run.preflight.preflight import STAGES, preflight, verdict
from longhaul.store.catalogue import catalogue
from longhaul.store.run_differences import differences

DOUBLING = Path(__file__).with_name("doubling_rank.py")


def ground_of(room: Path, name: str, *options: str) -> PreflightContext:
    recipe = load_recipe(name, options).recipe
    room.mkdir()
    typed = Preflight(name, options, runs=room, prepared=room)
    size = small_world(recipe, None)
    return PreflightContext(typed, recipe, room, size, size)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> PreflightContext:
    return ground_of(tmp_path_factory.mktemp("layouts") / "room", "drill", "model.dropout=0.1")


def test_sound_layouts_pass_and_who_met_is_told(sound: PreflightContext) -> None:
    ranks, *layouts = check_layouts(sound)
    assert len(ranks.data["ranks"]) == 2
    assert {rank["rank"] for rank in ranks.data["ranks"]} == {0, 1}
    assert [check.verdict for check in layouts] == ["ok"] * 4


def test_a_gradient_that_counts_twice_on_one_rank_is_found(
    sound: PreflightContext, tmp_path: Path
) -> None:
    room = tmp_path / "broken"
    room.mkdir()
    broken = replace(sound, folder=room, ranks=(str(DOUBLING),))
    ranks, *layouts = check_layouts(broken)
    assert ranks.verdict == "ok", ranks.figure
    # Whoever shares data, layers or heads with rank 1 learns something else.
    assert [check.verdict for check in layouts] == ["failed"] * 4
    assert all("do not train with" in check.remedy for check in layouts)
    assert verdict([ranks, *layouts])[0] == ExitCode.NEEDS_PERSON


def test_a_rank_that_dies_is_named_and_takes_nobody_along(
    sound: PreflightContext, tmp_path: Path
) -> None:
    room = tmp_path / "dying"
    room.mkdir()
    before = set(psutil.Process().children())
    (check,) = check_layouts(replace(sound, folder=room, ranks=("-c", "raise SystemExit('gone')")))
    assert check.verdict == "failed"
    assert "ended with 1: gone" in check.figure
    left = set(psutil.Process().children()) - before
    assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]


def test_real_runs_of_the_twin_learn_resume_and_are_read_back(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = ("data.sources=[{path='python-stdlib'}]",)
    typed = Preflight("drill", options, minutes=60, keep=kept, runs=tmp_path / "runs")
    runs = [stage for stage in STAGES if stage.name in ("data", "stretch", "resume", "read back")]
    made = preflight(typed, lambda _: None, runs)
    assert [(c.name, c.figure, c.remedy) for c in made if c.verdict != "ok"] == []
    data = {check.name: check.data for check in made}
    assert {"data", "stretch", "gauges", "evaluation", "resume", "read back"} == set(data)
    assert data["stretch"]["last"] < data["stretch"]["first"]
    assert data["resume"]["resumed_from"] == 20
    assert not (tmp_path / "runs").exists()
    _a_single_byte_would_have_shown(kept)


def test_the_command_prints_one_object_and_leaves_nothing(tmp_path: Path) -> None:
    """With next to no time; everything that takes any is named."""
    # Forked, as the six seconds would go to imports on a machine that does much else.
    process = SERVER.start(
        ["-m", "longhaul", "preflight", "quickstart", "--json", "--minutes", "0.1",
         "--device-gb", "80", "--world", "8"],
        tmp_path, os.environ,
    )  # fmt: skip
    output, _ = process.communicate(timeout=100)
    told = json.loads(output)
    assert (process.returncode, told["exit_code"]) == (0, 0)
    assert told["verdict"].startswith("ready as far as was looked")
    by_name = {check["name"]: check for check in told["checks"]}
    assert by_name["recipe"]["verdict"] == "ok"
    assert by_name["layouts"]["verdict"] == by_name["resume"]["verdict"] == "skipped"
    assert list(tmp_path.iterdir()) == []


def _a_single_byte_would_have_shown(kept: Path) -> None:
    alone, killed = RunFolder(kept / "undisturbed"), RunFolder(kept / "killed-1")
    assert differences(alone, killed).none
    last = catalogue(killed.checkpoints)[-1].path
    file = max(last.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert differences(alone, killed).pieces
    shutil.rmtree(kept)
