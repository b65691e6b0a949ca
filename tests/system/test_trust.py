"""`train` runs what a recipe names only once the user has said so, and a restart is never asked."""

import pytest

from small_runs import FEW_HELD_OUT, HALF_A_BATCH

RECIPE = """
extends = "drill"
name = "foreign"
[optim.schedule]
warmup_steps = 1
[supervise]
replace_command = "touch {touched}"
"""


@pytest.mark.parametrize(
    "word", ["--trust", pytest.param("by the environment", marks=pytest.mark.slow)]
)
def test_a_recipe_with_a_command_is_refused_until_it_is_trusted_once(room, monkeypatch, word):
    touched, file = room.path / "touched", room.path / "foreign.toml"
    file.write_text(RECIPE.format(touched=touched))
    options = ("--set", "train.steps=3", "--set", FEW_HELD_OUT, "--set", HALF_A_BATCH)
    code, said = room.run("train", str(file), *options)
    assert code == 2, said
    assert f'supervise.replace_command = "touch {touched}"' in said
    assert not room.folder("foreign").exists, "nothing of it was begun"
    if word == "--trust":
        code, said = room.run("train", str(file), *options, word)
    else:
        with monkeypatch.context() as patch:
            patch.setenv("LONGHAUL_TRUST", "1")
            code, said = room.run("train", str(file), *options)
    assert code == 0, said
    code, said = room.run("train", "foreign", "--set", "train.steps=4")
    assert code == 0, said
    assert not touched.exists()
    # A folder that came from elsewhere is another one.
    room.folder("foreign").path.rename(room.runs / "moved")
    code, said = room.run("train", "moved", "--set", "train.steps=5")
    assert code == 2, said
