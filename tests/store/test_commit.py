from collections.abc import Callable
from pathlib import Path

import pytest

from longhaul.store.catalogue import (
    NotOwner,
    catalogue,
    checkpoint_path,
    commit,
    partial_path,
    remove,
    step_of,
    sweep,
)

Fill = Callable[..., Path]


def content(folder: Path, step: int) -> bytes:
    return (checkpoint_path(folder, step) / "state.json").read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["step-", "step-01", "step-1x", "Step-1", "step--1", ".step-1"])
def test_only_canonical_names_are_checkpoints(name: str) -> None:
    assert step_of(Path(name)) is None
    assert step_of(Path("step-120")) == 120
    assert step_of(Path("step-0")) == 0


def test_committing_over_an_older_checkpoint_leaves_only_the_new_one(
    tmp_path: Path, fill: Fill
) -> None:
    for attempt, text in ((1, b"old"), (2, b"new")):
        partial = fill(partial_path(tmp_path, 5, attempt), 5, text)
        commit(partial, checkpoint_path(tmp_path, 5), lambda: True)
        assert content(tmp_path, 5) == text
        assert names(tmp_path) == ["step-5"]


def test_who_lost_the_lease_changes_nothing_visible(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path / "step-5", 5, b"old")
    partial = fill(partial_path(tmp_path, 5, 1), 5, b"new")
    with pytest.raises(NotOwner, match="step-5 was not committed"):
        commit(partial, checkpoint_path(tmp_path, 5), lambda: False)
    assert content(tmp_path, 5) == b"old"


def test_a_refused_rename_leaves_the_older_checkpoint_in_place(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path / "step-5", 5, b"old")
    with pytest.raises(OSError):
        commit(partial_path(tmp_path, 5, 2), checkpoint_path(tmp_path, 5), lambda: True)
    assert content(tmp_path, 5) == b"old"
    assert names(tmp_path) == ["step-5"]


@pytest.mark.parametrize("crashed_after", ["aside", "renamed"])
def test_a_crash_between_the_two_renames_loses_nothing(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch, crashed_after: str
) -> None:
    fill(tmp_path / "step-5", 5, b"old")
    partial = fill(partial_path(tmp_path, 5, 2), 5, b"new")
    rename = Path.rename

    class Killed(BaseException):
        pass

    def dying(path: Path, target: Path) -> Path:
        if crashed_after == "aside" and path == partial:
            raise Killed
        renamed = rename(path, target)
        if crashed_after == "renamed" and path == partial:
            raise Killed
        return renamed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        with pytest.raises(Killed):
            commit(partial, checkpoint_path(tmp_path, 5), lambda: True)
    sweep(tmp_path, current_attempt=3)
    assert content(tmp_path, 5) == (b"old" if crashed_after == "aside" else b"new")
    assert names(tmp_path) == ["step-5"]


def test_sweeping_spares_the_living_and_the_committed(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path / "step-4", 4)
    for attempt in (1, 2, 3, 4):
        partial_path(tmp_path, 7, attempt).mkdir()
    (tmp_path / ".step-2.removed").mkdir()
    (tmp_path / "notes").mkdir()
    done = sweep(tmp_path, current_attempt=3)
    assert names(tmp_path) == [
        ".step-7.attempt-3.partial",
        ".step-7.attempt-4.partial",
        "notes",
        "step-4",
    ]
    assert done == [
        "removed a partial step-7 of attempt 1",
        "removed a partial step-7 of attempt 2",
    ]
    assert sweep(tmp_path / "absent", current_attempt=1) == []


def test_a_checkpoint_whose_removal_was_cut_short_is_none(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fill(tmp_path / "step-4", 4)

    def dying(path: Path) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr("longhaul.store.catalogue.shutil.rmtree", dying)
        with pytest.raises(OSError):
            remove(path)
    assert catalogue(tmp_path) == []
    remove(fill(tmp_path / "step-4", 4))
    assert names(tmp_path) == []
