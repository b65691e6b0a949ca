import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longhaul.config.load import load_recipe
from longhaul.core.clocks import RealClock, TimeBuckets
from longhaul.core.errors import ExitCode, NeedsPerson, RecipeError
from longhaul.core.records import Decision
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import CheckpointHealth, fold_all
from longhaul.store.catalogue import catalogue
from longhaul.store.manifest import Manifest, verify, write_listed_file, write_manifest
from longhaul.store.tiers import StoreNeeded, Tiers
from longhaul.store.transfers import Patience

CLOCK = RealClock()


class Lease:
    attempt = 3
    since = 1.5e9

    def is_ours(self) -> bool:
        return True


class Room:
    """A run whose checkpoints are a word each, and its tiers."""

    def __init__(self, path: Path, *remotes: str) -> None:
        self.folder = RunFolder(path / "runs" / "trial")
        self.lease, self.clock, self.time = Lease(), CLOCK, TimeBuckets(CLOCK)
        self.ledger = SimpleNamespace(checkpoint_health={})
        self.remotes = [path / remote for remote in remotes]
        self.said: list[str] = []
        self.told: list[tuple[str, int, Mapping[str, Any]]] = []
        options = [f"checkpoint.remote={[str(remote) for remote in self.remotes]}"]
        self.recipe = load_recipe("quickstart", options if remotes else []).recipe
        self.made: list[Tiers] = []

    @property
    def recorded(self) -> dict[int, CheckpointHealth]:
        """Healths in the ledger."""
        return self.ledger.checkpoint_health

    def emit(self, kind: str, step: int, **data: Any) -> None:
        """As that of a run log, which this stands in for."""
        self.told.append((kind, step, data))

    def tiers(self) -> Tiers:
        """Those of a new attempt."""
        self.made.append(Tiers(self.recipe, self, self.said.append))  # type: ignore[arg-type]
        for uploader in self.made[-1]._uploaders:
            uploader.tier.files.patience = Patience(first_pause_s=0.001)
        return self.made[-1]

    def save(self, step: int) -> Path:
        folder = self.folder.checkpoints / f"step-{step}"
        folder.mkdir(parents=True)
        file = write_listed_file(folder / "state.json", [f"state of {step}".encode()])
        sha256 = write_manifest(folder, Manifest(step=step, time=float(step), files=(file,)))
        self.recorded[step] = CheckpointHealth("verified", sha256)
        return folder

    def send(self, *steps: int) -> None:
        for step in steps:
            self.save(step)
        tiers = self.tiers()
        tiers.offer()
        tiers.settle(30)
        assert tiers.settled()
        assert not tiers.pending
        assert tiers.unsent() == ""

    def candidates(self, tiers: Tiers) -> Iterator[int]:
        for checkpoint in tiers.candidates():
            assert checkpoint.path.parent == self.folder.checkpoints
            yield checkpoint.step

    def lose(self) -> None:
        shutil.rmtree(self.folder.checkpoints)


@pytest.fixture
def room_with(tmp_path: Path):
    rooms: list[Room] = []

    def room_with(*remotes: str) -> Room:
        rooms.append(Room(tmp_path, *remotes))
        return rooms[-1]

    yield room_with
    for room in rooms:
        for tiers in room.made:
            tiers.close()


def test_without_a_remote_place_nothing_is_done(room_with) -> None:
    room = room_with()
    room.save(10)
    room.save(20)
    tiers = room.tiers()
    tiers.offer()
    assert list(tiers.news()) == []
    assert tiers.pending == frozenset()
    assert list(room.candidates(tiers)) == [20, 10]
    tiers.refuse_to_begin_anew()


def test_a_run_whose_local_checkpoints_are_gone_goes_on_from_elsewhere(room_with) -> None:
    room = room_with("remote")
    room.send(10, 20)
    assert [kind for kind, _, _ in room.made[0].news()] == ["uploaded", "uploaded"]
    room.lose()
    tiers = room.tiers()
    assert next(room.candidates(tiers)) == 20
    verify(room.folder.checkpoints / "step-20")
    ((kind, step, data),) = room.told
    assert (kind, step, data["tier"]) == ("fetched", 20, f"{room.remotes[0]}/trial")
    assert [c.step for c in catalogue(room.folder.checkpoints)] == [20]


def test_a_copy_that_is_refused_here_is_taken_from_elsewhere(room_with) -> None:
    room = room_with("remote")
    room.send(10, 20)
    (room.folder.checkpoints / "step-20" / "state.json").write_bytes(b"torn")
    order = room.candidates(room.tiers())
    assert next(order) == 20
    assert not room.told, "the store is not asked while the newest one is here"
    assert next(order) == 20  # refused by its hash
    verify(room.folder.checkpoints / "step-20")
    assert next(order) == 10


def test_a_newer_one_elsewhere_comes_before_an_older_one_here(room_with) -> None:
    room = room_with("remote")
    room.send(10, 20)
    shutil.rmtree(room.folder.checkpoints / "step-20")
    assert list(room.candidates(room.tiers()))[:2] == [20, 10]


def test_a_copy_that_is_damaged_there_is_taken_from_the_next_place(room_with) -> None:
    room = room_with("near", "far")
    room.send(10, 20)
    room.lose()
    (bad,) = (room.remotes[0] / "trial").glob("step-20-*/state.json")
    bad.write_bytes(b"state of 21")
    assert next(room.candidates(room.tiers())) == 20
    assert room.told[0][2]["tier"] == f"{room.remotes[1]}/trial"
    assert any("its bytes differ from its manifest" in said for said in room.said)


def test_what_a_rollback_went_past_is_not_fetched(room_with) -> None:
    room = room_with("remote")
    room.send(10, 20)
    room.lose()
    room.recorded[20] = CheckpointHealth("poisoned", room.recorded[20].manifest)
    assert list(room.candidates(room.tiers())) == [10]


def health(step: int, word: str, manifest: str) -> Decision:
    data = {"checkpoint": step, "health": word, "manifest": manifest}
    return Decision(
        kind="checkpoint-health", attempt=3, step=step, time=1.0, who="pilot", reason="", data=data
    )


def test_what_was_saved_again_at_a_poisoned_step_lets_no_diverged_state_back(room_with) -> None:
    """The tier is slow: it has the diverged step 20, and not yet the one that was made anew."""
    room = room_with("remote")
    room.send(10, 20)
    diverged = room.recorded[20].manifest
    room.ledger.checkpoint_health = dict(
        fold_all(
            [
                health(10, "verified", room.recorded[10].manifest),
                health(20, "verified", diverged),
                health(20, "poisoned", diverged),
                health(20, "committed", "made anew"),
                health(20, "verified", "made anew"),
            ]
        ).checkpoint_health
    )
    room.lose()
    assert list(room.candidates(room.tiers())) == [10]


def test_a_rollback_takes_poisoned_copies_out_of_every_tier(room_with) -> None:
    room = room_with("near", "far")
    room.send(10, 20)
    tiers = room.made[0]
    assert tiers.unpoisoned() == {(step, known.manifest) for step, known in room.recorded.items()}
    room.recorded[20] = CheckpointHealth("poisoned", room.recorded[20].manifest)
    tiers.withdraw()
    tiers.settle(30)
    left = [path.name for remote in room.remotes for path in (remote / "trial").glob("step-*")]
    assert [name.split("-")[1] for name in left] == ["10", "10"]
    assert tiers.unpoisoned() == {(10, room.recorded[10].manifest)}


def test_what_was_poisoned_while_nobody_trained_goes_at_the_next_start(room_with) -> None:
    room = room_with("remote")
    room.send(10, 20)
    room.recorded[20] = CheckpointHealth(
        "verified", "made anew", {room.recorded[20].manifest: "poisoned"}
    )
    tiers = room.tiers()
    tiers.offer()
    tiers.settle(30)
    assert [path.name.split("-")[1] for path in (room.remotes[0] / "trial").glob("step-*")] == [
        "10"
    ]


def test_a_run_does_not_begin_anew_because_its_store_is_silent(room_with, monkeypatch) -> None:
    room = room_with("remote")
    room.send(10)
    room.lose()
    for place in (room.remotes[0] / "trial").rglob("manifest.json"):
        place.unlink()
        place.mkdir()
    tiers = room.tiers()
    assert list(room.candidates(tiers)) == []
    with pytest.raises(StoreNeeded) as raised:
        tiers.refuse_to_begin_anew()
    assert raised.value.exit_code == ExitCode.START_AGAIN
    assert "no checkpoint is here (step 10 was saved)" in raised.value.message
    room.recorded.clear()
    tiers.refuse_to_begin_anew()  # a run that has saved nothing loses nothing


def test_a_run_does_not_begin_anew_because_its_place_looks_empty(room_with) -> None:
    room = room_with("remote")
    room.send(10)
    room.lose()
    shutil.rmtree(room.remotes[0])
    tiers = room.tiers()
    assert list(room.candidates(tiers)) == []
    with pytest.raises(NeedsPerson, match=r"step 10 was saved.*has none"):
        tiers.refuse_to_begin_anew()
    tiers.refuse_to_begin_anew(nothing_here=False)


def test_a_new_run_with_an_empty_place_begins(room_with) -> None:
    room = room_with("remote")
    tiers = room.tiers()
    assert list(room.candidates(tiers)) == []
    tiers.refuse_to_begin_anew()


def test_on_a_full_disk_what_is_safe_elsewhere_gives_way(room_with) -> None:
    alone, held = room_with(), room_with("remote")
    held.send(10, 20)
    size = catalogue(held.folder.checkpoints)[0].size_bytes
    tiers = held.made[0]
    list(tiers.news())
    assert tiers.make_room(size + 1)
    assert [c.step for c in catalogue(held.folder.checkpoints)] == []
    assert [(kind, step) for kind, step, _ in tiers.news()] == [
        ("room-made", 10),
        ("room-made", 20),
    ]
    assert next(held.candidates(held.tiers())) == 20
    # The same folder, without a tier: the newest stays.
    alone.recorded.update(held.recorded)
    tiers = alone.tiers()
    tiers.offer()
    assert not tiers.make_room(1)


def test_going_back_further_than_was_saved_is_said(room_with) -> None:
    room = room_with("remote")
    room.send(10, 20)
    (room.folder.checkpoints / ".step-20.0123456789ab.download").mkdir()
    tiers = room.tiers()
    tiers.arrived(20)
    assert room.said == []
    tiers.arrived(10)
    assert room.said == [
        "WARNING: step 20 was saved, and no copy of it can be had; going on from step 10: "
        "10 steps are made again, on the same data"
    ]
    assert not list(room.folder.checkpoints.glob(".step-*"))


def test_an_address_that_is_none_is_a_mistake_in_the_recipe(room_with) -> None:
    room = room_with()
    room.recipe = load_recipe("quickstart", ["checkpoint.remote='s9://nowhere/x'"]).recipe
    with pytest.raises(RecipeError, match="s9://nowhere"):
        room.tiers()
