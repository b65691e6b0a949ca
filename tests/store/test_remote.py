from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longhaul.core.errors import NotOwner
from longhaul.store.manifest import RefusedCheckpoint, verify
from longhaul.store.transfers import StoreError

BIG = bytes(range(256)) * 40_000  # three pieces of a transfer


def always() -> bool:
    return True


def brought_back(tier, tmp_path: Path, folder: Path) -> bool:
    """Whether the only checkpoint there is `folder`, byte by byte."""
    (entry,) = tier.checkpoints()
    back = tmp_path / "back"
    tier.fetch(entry, back, lambda _: None)
    verify(back)
    return {p.name: p.read_bytes() for p in back.iterdir()} == {
        p.name: p.read_bytes() for p in folder.iterdir()
    }


def test_a_checkpoint_goes_there_and_comes_back(tmp_path: Path, fill, tier_of) -> None:
    folder, tier = fill(tmp_path / "step-7", 7, big=BIG, empty=b""), tier_of()
    assert tier.checkpoints() == []
    assert tier.send(folder, always) == sum(path.stat().st_size for path in folder.iterdir())
    (entry,) = tier.checkpoints()
    assert (entry.step, entry.time, entry.size_bytes) == (7, 7.0, len(BIG) + 5)
    assert brought_back(tier, tmp_path, folder)
    assert tier.send(folder, always) == 0


def test_an_upload_that_is_cut_off_is_no_checkpoint_and_is_gone_on_with(
    tmp_path: Path, fill, tier_of, store
) -> None:
    folder, tier = fill(tmp_path / "step-7", 7, a=b"a", big=BIG, z=b"z"), tier_of(store)
    store.cut["big.bin"] = 5 << 20
    with pytest.raises(StoreError, match=r"big\.bin: OSError: 500"):
        tier.send(folder, always)
    assert tier.checkpoints() == []
    store.written.clear()
    # Another process knows nothing of the first attempt: it reads back what it finds.
    sent = tier_of(store).send(folder, always)
    assert store.written == ["big.bin", "z.bin", "manifest.json"]
    assert sent == sum((folder / name).stat().st_size for name in store.written)
    assert brought_back(tier, tmp_path, folder)


def test_a_file_of_the_right_size_but_other_bytes_is_sent_again(
    tmp_path: Path, fill, tier_of, store
) -> None:
    folder, tier = fill(tmp_path / "step-7", 7, a=b"aaaa", b=b"bbbb"), tier_of(store)
    store.flipped.add("a.bin")
    with pytest.raises(StoreError, match=r"a\.bin: the store gives back other bytes"):
        tier.send(folder, always)
    assert tier.checkpoints() == []
    store.written.clear()
    tier_of(store).send(folder, always)
    assert store.written == ["a.bin", "b.bin", "manifest.json"]
    assert brought_back(tier, tmp_path, folder)


def test_the_manifest_goes_last_and_only_its_owner_sends_it(
    tmp_path: Path, fill, tier_of, store
) -> None:
    folder, tier = fill(tmp_path / "step-7", 7, a=b"a"), tier_of(store)
    with pytest.raises(NotOwner):
        tier.send(folder, lambda: False)
    assert store.written == ["state.json", "a.bin"]
    assert tier.checkpoints() == []
    tier.send(folder, always)
    assert store.written[-1] == "manifest.json"


def test_a_manifest_that_is_half_there_is_none(tmp_path: Path, fill, tier_of) -> None:
    tier = tier_of()
    tier.send(fill(tmp_path / "step-7", 7), always)
    (there,) = (tmp_path / "remote").glob("*/manifest.json")
    there.write_bytes(there.read_bytes()[:-5])
    assert tier.checkpoints() == []


def test_a_damaged_checkpoint_is_not_sent(tmp_path: Path, fill, tier_of) -> None:
    folder, tier = fill(tmp_path / "step-7", 7, a=b"aaaa"), tier_of()
    (folder / "a.bin").write_bytes(b"aaab")
    with pytest.raises(RefusedCheckpoint, match="differs from its manifest"):
        tier.send(folder, always)
    assert tier.checkpoints() == []


@pytest.mark.parametrize("way", ["send", "fetch"])
def test_a_store_that_hangs_in_a_file_is_given_up_by_its_name(
    tmp_path: Path, fill, tier_of, store, way: str
) -> None:
    folder, tier = fill(tmp_path / "step-7", 7, big=BIG), tier_of(store)
    if way == "fetch":
        tier.send(folder, always)
    store.hangs.add("big.bin")
    tier.files.patience = replace(tier.files.patience, answer_s=0.3)
    way_there = {
        "send": lambda: tier.send(folder, always),
        "fetch": lambda: tier.fetch(tier.checkpoints()[0], tmp_path / "back", lambda _: None),
    }
    with pytest.raises(StoreError, match=r"big\.bin: (no answer|not done) within"):
        way_there[way]()


def test_a_download_goes_on_where_it_was_cut_off(tmp_path: Path, fill, tier_of, store) -> None:
    folder, tier = fill(tmp_path / "step-7", 7, big=BIG), tier_of(store)
    tier.send(folder, always)
    said: list[str] = []
    store.cut["big.bin"] = 5 << 20
    store.read.clear()
    tier.fetch(tier.checkpoints()[0], tmp_path / "back", said.append)
    assert [begin for name, begin in store.read if name == "big.bin"] == [0, 4 << 20]
    assert len(said) == 1
    assert "500 Internal Server Error; trying again" in said[0]
    verify(tmp_path / "back")


def test_a_wrong_beginning_is_fetched_anew(tmp_path: Path, fill, tier_of, store) -> None:
    folder, tier = fill(tmp_path / "step-7", 7, big=BIG), tier_of(store)
    tier.send(folder, always)
    back = tmp_path / "back"
    back.mkdir()
    (back / "big.bin").write_bytes(b"x" * 1000)
    (back / "state.json").write_bytes(b"longer than it should be")
    tier.fetch(tier.checkpoints()[0], back, lambda _: None)
    verify(back)


def test_a_copy_with_wrong_bytes_is_refused(tmp_path: Path, fill, tier_of) -> None:
    tier = tier_of()
    tier.send(fill(tmp_path / "step-7", 7, a=b"aaaa"), always)
    (there,) = (tmp_path / "remote").glob("*/a.bin")
    there.write_bytes(b"aaab")
    with pytest.raises(StoreError, match=r"a\.bin: its bytes differ from its manifest"):
        tier.fetch(tier.checkpoints()[0], tmp_path / "back", lambda _: None)
    assert not (tmp_path / "back" / "manifest.json").exists()


def test_another_state_of_the_same_step_lies_beside_the_first(
    tmp_path: Path, fill, tier_of
) -> None:
    tier = tier_of()
    tier.send(fill(tmp_path / "a" / "step-7", 7, b"one"), always)
    tier.send(fill(tmp_path / "b" / "step-7", 7, b"two"), always)
    first, second = tier.checkpoints()
    assert first.path != second.path
    tier.remove(first)
    assert tier.checkpoints() == [second]


def test_what_cut_off_uploads_left_is_removed_unless_it_is_still_to_be_sent(
    tmp_path: Path, fill, tier_of, store
) -> None:
    tier: Callable = tier_of(store)
    folders = [fill(tmp_path / f"step-{step}", step, z=b"z") for step in (1, 2, 3)]
    for folder in folders[:2]:
        store.cut["z.bin"] = 0
        with pytest.raises(StoreError):
            tier.send(folder, always)
    tier.send(folders[2], always)
    wanted = {path.name for path in (tmp_path / "remote").glob("step-2-*")}
    kept = {name[-12:] + "0" * 52 for name in wanted}
    tier.remove_unfinished(3, kept)
    left = sorted(path.name[:7] for path in (tmp_path / "remote").iterdir())
    assert left == ["step-2-", "step-3-"]


def test_a_store_that_is_away_says_so(tmp_path: Path, fill, tier_of, store) -> None:
    tier = tier_of(store)
    tier.send(fill(tmp_path / "step-7", 7), always)
    store.away = True
    with pytest.raises(StoreError, match="503 Slow Down"):
        tier.checkpoints()
