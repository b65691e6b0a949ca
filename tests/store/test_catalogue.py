from collections.abc import Callable
from pathlib import Path

import pytest

from longhaul.logbook.ledger import CheckpointHealth
from longhaul.store.catalogue import catalogue, newest_usable, partial_path
from longhaul.store.manifest import MANIFEST_NAME, RefusedCheckpoint, read_manifest, verify


def test_only_committed_checkpoints_are_listed_in_the_order_of_steps(
    tmp_path: Path, fill: Callable[..., Path]
) -> None:
    for step in (100, 20, 3):
        fill(tmp_path / f"step-{step}", step)
    fill(partial_path(tmp_path, 200, 1), 200)
    fill(tmp_path / "step-0300", 300)
    fill(tmp_path / "step-5.bak", 5)
    (tmp_path / "step-400").mkdir()
    (tmp_path / "step-500").touch()
    found = catalogue(tmp_path)
    assert [entry.step for entry in found] == [3, 20, 100]
    assert found[0].manifest_sha256 == read_manifest(tmp_path / "step-3")[1]
    assert (found[0].time, found[0].size_bytes, found[0].damage) == (3.0, 5, "")
    assert catalogue(tmp_path / "absent") == []


def test_a_damaged_manifest_is_listed_with_the_reason_loading_would_give(
    tmp_path: Path, fill: Callable[..., Path]
) -> None:
    path = fill(tmp_path / "step-9", 9)
    (path / MANIFEST_NAME).write_text("{")
    (entry,) = catalogue(tmp_path)
    with pytest.raises(RefusedCheckpoint) as refusal:
        verify(path)
    assert entry.damage == str(refusal.value)


def test_a_checkpoint_under_the_name_of_another_step_is_damaged(
    tmp_path: Path, fill: Callable[..., Path]
) -> None:
    fill(tmp_path / "step-9", 8)
    assert "step 8" in catalogue(tmp_path)[0].damage


def test_the_newest_that_is_not_poisoned_is_tried_first(
    tmp_path: Path, fill: Callable[..., Path]
) -> None:
    for step in (1, 2, 3, 10):
        fill(tmp_path / f"step-{step}", step)
    there = catalogue(tmp_path)
    health = {1: "good", 2: "committed", 10: "poisoned"}
    recorded = {
        entry.step: CheckpointHealth(health[entry.step], entry.manifest_sha256)
        for entry in there
        if entry.step in health
    }
    tried = newest_usable(there, recorded)
    assert [entry.step for entry in tried] == [3, 2, 1]
