from dataclasses import replace
from pathlib import Path

import pytest

from longhaul.core.errors import NotOwner
from longhaul.logbook.ledger import CheckpointHealth
from longhaul.store.catalogue import Checkpoint, catalogue, sweep
from longhaul.store.fetching import bring_here, forget_downloads, newest_of_all
from longhaul.store.manifest import verify
from longhaul.store.transfers import StoreError


def always() -> bool:
    return True


def entry(step: int, sha256: str, time: float = 0.0) -> Checkpoint:
    return Checkpoint(step=step, path=Path("x"), manifest_sha256=sha256, time=time, size_bytes=0)


def test_the_newest_comes_first_and_of_one_step_the_copy_that_is_here(tier_of) -> None:
    near, far = tier_of(name="near"), tier_of(name="far")
    copies = newest_of_all(
        [entry(10, "a"), entry(30, "c")],
        [
            (near, [entry(20, "b"), entry(30, "c"), entry(40, "d")]),
            (far, [entry(40, "d")]),
        ],
        {40: CheckpointHealth("verified", "d")},
    )
    order = [(copy.checkpoint.step, copy.tier) for copy in copies]
    assert order == [(40, near), (40, far), (30, None), (30, near), (20, near), (10, None)]


def test_a_poisoned_state_is_passed_over_wherever_it_lies(tier_of) -> None:
    tier = tier_of()
    there = [entry(20, "old line", 1.0), entry(20, "new line", 2.0), entry(10, "a")]
    recorded = {20: CheckpointHealth("verified", "new line", {"old line": "poisoned"})}
    copies = newest_of_all([entry(20, "old line")], [(tier, there)], recorded)
    assert [copy.checkpoint.manifest_sha256 for copy in copies] == ["new line", "a"]


def test_what_is_brought_here_is_a_checkpoint_like_any_other(tmp_path: Path, fill, tier_of) -> None:
    tier, folder = tier_of(), tmp_path / "run"
    tier.send(fill(tmp_path / "away" / "step-7", 7, a=b"a"), always)
    (copy,) = newest_of_all([], [(tier, tier.checkpoints())], {})
    path = bring_here(copy.checkpoint, copy.tier, folder, 3, always, lambda _: None)
    assert path == folder / "step-7"
    verify(path)
    (here,) = catalogue(folder)
    assert here.manifest_sha256 == copy.checkpoint.manifest_sha256
    assert [p.name for p in folder.iterdir()] == ["step-7"]


def test_it_takes_the_place_of_a_damaged_one(tmp_path: Path, fill, tier_of) -> None:
    tier, folder = tier_of(), tmp_path / "run"
    here = fill(folder / "step-7", 7, a=b"a")
    tier.send(here, always)
    (here / "a.bin").write_bytes(b"b")
    (copy,) = newest_of_all([], [(tier, tier.checkpoints())], {})
    path = bring_here(copy.checkpoint, copy.tier, folder, 3, always, lambda _: None)
    assert (path / "a.bin").read_bytes() == b"a"
    verify(path)


def test_a_download_that_is_cut_off_is_gone_on_with_by_the_next_attempt(
    tmp_path: Path, fill, tier_of, store
) -> None:
    tier, folder = tier_of(store), tmp_path / "run"
    tier.send(fill(tmp_path / "away" / "step-7", 7, a=b"a", z=b"z"), always)
    (copy,) = newest_of_all([], [(tier, tier.checkpoints())], {})
    store.hangs.add("z.bin")
    tier.files.patience = replace(tier.files.patience, answer_s=0.3)
    with pytest.raises(StoreError, match=r"z\.bin"):
        bring_here(copy.checkpoint, copy.tier, folder, 3, always, lambda _: None)
    assert catalogue(folder) == []
    sweep(folder, 4)
    tier.files.patience = replace(tier.files.patience, answer_s=30)
    store.hangs.clear()
    store.released.set()
    store.read.clear()
    verify(bring_here(copy.checkpoint, copy.tier, folder, 4, always, lambda _: None))
    assert [name for name, _ in store.read] == ["z.bin"]


def test_a_process_killed_while_it_wrote_the_manifest_does_not_spoil_the_download(
    tmp_path: Path, fill, tier_of
) -> None:
    tier, folder = tier_of(), tmp_path / "run"
    tier.send(fill(tmp_path / "away" / "step-7", 7, a=b"a"), always)
    (copy,) = newest_of_all([], [(tier, tier.checkpoints())], {})
    coming = folder / f".step-7.{copy.checkpoint.manifest_sha256[:12]}.download"
    coming.mkdir(parents=True)
    (coming / ".manifest.json.4711-0123abcd.tmp").write_bytes(b"{")
    verify(bring_here(copy.checkpoint, copy.tier, folder, 3, always, lambda _: None))


def test_an_attempt_that_was_fenced_brings_nothing(tmp_path: Path, fill, tier_of) -> None:
    tier, folder = tier_of(), tmp_path / "run"
    tier.send(fill(tmp_path / "away" / "step-7", 7), always)
    (copy,) = newest_of_all([], [(tier, tier.checkpoints())], {})
    with pytest.raises(NotOwner):
        bring_here(copy.checkpoint, copy.tier, folder, 3, lambda: False, lambda _: None)
    assert catalogue(folder) == []


def test_downloads_that_are_not_needed_any_more_go(tmp_path: Path) -> None:
    (tmp_path / ".step-7.0123456789ab.download").mkdir()
    (tmp_path / "step-7").mkdir()
    forget_downloads(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["step-7"]
