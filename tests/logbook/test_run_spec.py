import json
from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.core.addresses import forget_addresses
from longhaul.core.errors import RecipeError, UsageError
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.run_spec import (
    RunSpec,
    changed_settings,
    read_run_spec,
    resolve_spec,
    spec_of_restart,
    spec_with_more,
    write_run_spec,
)


def asked(*options: str, data: str | None = None) -> RunSpec:
    return resolve_spec("drill", options, data, Path("prepared"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "drill", FakeClock())


def test_what_was_asked_reads_back_and_the_recipe_lies_beside_it(folder: RunFolder) -> None:
    first = asked("optim.lr=1e-3", data="my.txt")
    write_run_spec(folder, first)
    assert read_run_spec(folder) == first
    assert "for `longhaul drill`" in folder.recipe.read_text()


def test_earlier_options_stay_and_new_ones_win() -> None:
    first = asked("optim.lr=1e-3", "train.steps=50")
    again = spec_of_restart(first, asked("train.steps=70"))
    settings = again.settings()
    assert (settings.optim.lr, settings.train.steps) == (1e-3, 70)
    assert spec_of_restart(again, asked()).settings() == settings


def test_an_option_given_again_with_its_old_value_takes_the_new_one_back() -> None:
    first = asked("optim.lr=1e-3")
    lowered = spec_of_restart(first, asked("optim.lr=1e-4"))
    back = spec_of_restart(lowered, asked("optim.lr=1e-3"))
    assert back.settings().optim.lr == 1e-3


@pytest.mark.parametrize(
    "option", ["model.width=32", "seed=2", "tokenizer.kind=characters", "batch.sequences=32"]
)
def test_what_would_make_another_run_is_refused_by_name(option: str) -> None:
    with pytest.raises(RecipeError, match=option.split("=")[0].replace(".", r"\.")):
        spec_of_restart(asked(), asked(option))


def test_a_second_start_from_another_folder_finds_the_same_files(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later = tmp_path / "first", tmp_path / "later"
    first.mkdir()
    later.mkdir()
    recipe = first / "mine.toml"
    recipe.write_text('extends = "drill"\n[supervise]\nnode_ledger = "nodes"\n')
    monkeypatch.chdir(first)
    remote = "checkpoint.remote=['store', 's3://bucket/runs']"
    write_run_spec(folder, resolve_spec("mine.toml", (remote,), None, Path("prepared")))
    monkeypatch.chdir(later)
    same = spec_of_restart(
        read_run_spec(folder), resolve_spec(str(recipe), (), None, Path("prepared"))
    )
    for known in (read_run_spec(folder), same, spec_with_more(same, ("train.steps=90",), None)):
        settings = known.settings()
        assert settings.checkpoint.remote == (str(first / "store"), "s3://bucket/runs")
        assert settings.supervise.node_ledger == str(first / "nodes")
    moved = spec_with_more(same, ("supervise.node_ledger=nodes",), None)
    assert moved.settings().supervise.node_ledger == str(later / "nodes")
    assert moved.settings().checkpoint.remote == settings.checkpoint.remote


@pytest.mark.parametrize(
    "content",
    [
        "-----BEGIN PRIVATE KEY-----\n",
        '[registry]\ntoken = "secret"\n',
        "x = " + "[" * 100_000,
        "a" + ".a" * 100_000 + " = 1\n",
    ],
    ids=["a key", "credentials", "deep lists", "a deep key"],
)
def test_a_folder_from_elsewhere_has_no_file_of_ours_copied_into_it(
    folder: RunFolder, tmp_path: Path, content: str
) -> None:
    """What it calls its recipe's file is its own word, and a remote tier would take the copy."""
    write_run_spec(folder, asked())
    ours = tmp_path / "ours.toml"
    ours.write_text(content)
    body = json.loads((folder.path / "asked.json").read_text())
    (folder.path / "asked.json").write_text(json.dumps(body | {"recipe": str(ours)}))
    write_run_spec(folder, spec_with_more(read_run_spec(folder), (), None))
    assert "for `longhaul drill`" in folder.recipe.read_text()


def test_no_secret_of_an_address_is_kept_with_a_run(folder: RunFolder, tmp_path: Path) -> None:
    address = "http://anna:hunter2@host/text.jsonl?sig=c2lnbmVk"
    mine = tmp_path / "mine.toml"
    source = f'{{ path = "{address}" }}'
    mine.write_text(f'# {address}\nextends = "drill"\n[data]\nsources = [{source}]\n')
    try:
        write_run_spec(folder, resolve_spec(str(mine), (), None, Path("prepared")))
    finally:
        forget_addresses()
    for kept in (folder.recipe.read_text(), folder.run_spec.read_text()):
        assert "http://***@host/text.jsonl?sig=***" in kept
        assert "hunter2" not in kept
        assert "c2lnbmVk" not in kept


def test_other_text_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"data\.sources"):
        spec_of_restart(asked(), asked(data="other.txt"))


def test_a_damaged_file_is_told_with_the_way_out(folder: RunFolder) -> None:
    (folder.path / "asked.json").write_text("{")
    with pytest.raises(UsageError, match="start the run again"):
        read_run_spec(folder)


def test_changed_settings_are_told_with_both_values() -> None:
    before, after = asked().settings(), asked("optim.schedule.warmup_steps=3").settings()
    assert changed_settings(before, after) == {"optim.schedule.warmup_steps": (20, 3)}
