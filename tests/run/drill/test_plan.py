from pathlib import Path

import pytest

from longhaul.config.load import load_recipe
from longhaul.core.errors import UsageError
from longhaul.logbook.run_spec import read_run_spec
from longhaul.run.drill.drilled_run import set_up_run
from longhaul.run.drill.fault import check_faults
from longhaul.run.drill.plan import Typed, drill_recipe, standard_faults
from longhaul.supervise.trust import refuse_untrusted


def refused(tmp_path: Path, recipe: str = "drill", **typed: object) -> str:
    """What is said where a drill does not even start; nothing may be in its room then."""
    room = tmp_path / "room"
    with pytest.raises(UsageError) as error:
        drill_recipe(Typed(recipe, **typed), room, lambda line: None)  # type: ignore[arg-type]
    assert not room.exists()
    assert error.value.exit_code == 2
    return str(error.value)


def test_what_cannot_be_drilled_is_refused_before_anything_starts(tmp_path: Path) -> None:
    assert "there is no rank 5" in refused(tmp_path, faults=("kill@rank5:step9",))
    assert "ends after step 40" in refused(tmp_path, faults=("kill@rank0:step50",), steps=40)
    assert "no remote tier" in refused(tmp_path, faults=("store-gone@rank0:step9",))
    assert "did you mean kill" in refused(tmp_path, faults=("kil@rank0:step9",))
    assert "20 or more with --steps" in refused(tmp_path, steps=3)


def test_a_run_may_be_shorter_than_its_recipes_warm_up(tmp_path: Path) -> None:
    said = refused(tmp_path, "quickstart", faults=("kill@rank0:step50",), steps=30)
    assert "ends after step 30" in said


def test_commands_that_a_recipe_names_need_the_same_trust_as_to_train_it(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "drill"\n[supervise]\nreplace_command = "order --node"\n')
    said = refused(tmp_path, str(recipe))
    assert 'supervise.replace_command = "order --node"' in said
    assert "--trust" in said
    with pytest.raises(UsageError, match="you trust it"):
        set_up_run(str(recipe), tmp_path / "runs", "one")
    folder = set_up_run(str(recipe), tmp_path / "runs", "one", trust=True)
    # The drill's processes start the run by its folder, and nobody types --trust there.
    refuse_untrusted(folder, read_run_spec(folder), str(folder.path), (), False, print)
    set_up_run(str(recipe), tmp_path / "runs", "two")  # its recipe is trusted by now


def test_the_runs_of_another_drill_are_left_alone(tmp_path: Path) -> None:
    set_up_run("drill", tmp_path, "undisturbed")
    with pytest.raises(UsageError, match="a run of another drill"):
        drill_recipe(Typed("drill"), tmp_path, lambda line: None)


def test_a_soak_takes_names_alone(tmp_path: Path) -> None:
    said = refused(tmp_path, faults=("kill@rank0:step9",), soak_s=60.0)
    assert "a soak chooses places itself" in said
    assert "no remote tier" in refused(tmp_path, faults=("store-gone",), soak_s=60.0)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_standard_set_is_possible_in_any_recipe(processes: int) -> None:
    for more in ((), ("checkpoint.remote='/nowhere'",)):
        sets = ("train={steps=21}", f"machine.processes={processes}", *more)
        recipe = load_recipe("drill", sets).recipe
        faults = standard_faults(recipe)
        check_faults(faults, recipe)
        kinds = {fault.kind for fault in faults}
        assert {"kill", "stop", "preempt", "bitflip-file", "nan"} <= kinds
        assert ("store-gone" in kinds) is bool(more)


def test_a_drill_keeps_away_from_the_users_own_store_and_ledger(tmp_path: Path) -> None:
    recipe = tmp_path / "own.toml"
    recipe.write_text(
        'extends = "drill"\n[checkpoint]\nremote = "s3://bucket/runs"\n'
        '[supervise]\nnode_ledger = "/shared/nodes"\n'
    )
    folder = set_up_run(str(recipe), tmp_path / "room", "run", nproc=1)
    settings = read_run_spec(folder).settings()
    assert settings.checkpoint.remote == (str(tmp_path / "room" / "remote"),)
    assert settings.supervise.node_ledger == str(tmp_path / "room" / "nodes")
    wanted = f"checkpoint.remote='{tmp_path}/other'"
    folder = set_up_run(str(recipe), tmp_path / "room", "other", nproc=1, sets=(wanted,))
    assert read_run_spec(folder).settings().checkpoint.remote == (f"{tmp_path}/other",)
