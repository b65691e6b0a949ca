"""Commands that a recipe or a run's folder names run only once the user has said that he trusts."""

import json
from pathlib import Path

import pytest

from longhaul.core.errors import UsageError
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.run_spec import resolve_spec
from longhaul.supervise.trust import refuse_untrusted, trusted_folder

COMMAND = "supervise.replace_command='order --node'"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def recipe(tmp_path):
    return written(tmp_path / "mine.toml")


def written(path: Path, command: str = "order --node", login: str = "ssh") -> Path:
    path.write_text(
        'extends = "drill"\n[supervise]\n'
        f"replace_command = {json.dumps(command)}\n"
        "node = [{ name = 'a' }, { name = 'b', command = ['" + login + "', 'b'] }]\n"
    )
    return path


def begin(recipe, folder="run", typed=(), trust=False, said=None):
    asked = resolve_spec(str(recipe), tuple(typed), None, Path("prepared"))
    place = RunFolder(recipe.parent / folder if isinstance(recipe, Path) else Path(folder))
    refuse_untrusted(
        place, asked, str(recipe), typed, trust, [].append if said is None else said.append
    )


def test_what_would_run_is_shown_and_refused_until_it_is_trusted_once(recipe):
    with pytest.raises(UsageError) as refused:
        begin(recipe)
    assert 'supervise.replace_command = "order --node"' in refused.value.message
    assert 'supervise.node.1.command = ["ssh", "b"]' in refused.value.message
    assert refused.value.exit_code == 2
    begin(recipe, trust=True)
    begin(recipe)  # nobody on call is asked again
    begin(recipe, folder="another run of the same recipe")


def test_a_changed_command_asks_again_and_another_folder_does(recipe, tmp_path):
    begin(recipe, trust=True)
    with pytest.raises(UsageError, match="order --twice"):
        begin(written(recipe, "order --twice"))
    with pytest.raises(UsageError, match="rsh"):
        begin(written(recipe, login="rsh"))
    begin(written(recipe))
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UsageError):
        begin(written(tmp_path / "elsewhere" / "mine.toml"))


def test_a_command_that_the_user_types_is_his_own_and_its_run_goes_on_without(tmp_path):
    begin("drill", folder=tmp_path / "run", typed=[COMMAND])
    asked = resolve_spec("drill", (COMMAND,), None, Path("prepared"))
    refuse_untrusted(RunFolder(tmp_path / "run"), asked, "run", (), False, print)
    with pytest.raises(UsageError):  # the same settings in a folder that came from elsewhere
        refuse_untrusted(RunFolder(tmp_path / "copied"), asked, "copied", (), False, print)


def test_a_command_that_calls_a_person_is_asked_for_like_any_other(tmp_path):
    hook = tmp_path / "hook.toml"
    hook.write_text('extends = "drill"\n[alert]\ncommand = ["sh", "-c", "evil"]\n')
    with pytest.raises(UsageError, match=r"alert\.command"):
        begin(hook)
    begin(hook, trust=True)
    begin(hook)
    typed = "alert.command=['mail', 'me']"
    begin("drill", folder=tmp_path / "run", typed=[typed])
    begin("drill", folder=tmp_path / "other", typed=["alert={command=['mail', 'me']}"])
    asked = resolve_spec("drill", (typed,), None, Path("prepared"))
    with pytest.raises(UsageError):
        refuse_untrusted(RunFolder(tmp_path / "copied"), asked, "copied", (), False, print)


def test_a_folder_cannot_borrow_the_trust_in_a_recipe_that_it_names(recipe, tmp_path):
    begin(recipe, trust=True)
    asked = resolve_spec(str(recipe), (), None, Path("prepared"))
    with pytest.raises(UsageError):
        refuse_untrusted(RunFolder(tmp_path / "sent"), asked, "sent", (), False, print)


def test_what_names_no_command_needs_no_word_and_leaves_no_trace(tmp_path):
    begin("drill", folder=tmp_path / "run")
    assert not trusted_folder().exists()


def test_where_it_cannot_be_remembered_the_run_starts_and_says_so(recipe, tmp_path):
    (tmp_path / "state").write_text("in the way")
    said = []
    begin(recipe, trust=True, said=said)
    assert "give --trust at every start" in said[0]


def test_what_is_shown_cannot_command_a_terminal(tmp_path):
    with pytest.raises(UsageError) as refused:
        begin(written(tmp_path / "mine.toml", "echo \x1b]0;fine\x07"))
    assert "\x1b" not in refused.value.message
