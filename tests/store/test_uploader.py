import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.logbook.ledger import CheckpointHealth
from longhaul.store.catalogue import catalogue
from longhaul.store.remote import RemoteTier
from longhaul.store.remote_log import PlaceTaken
from longhaul.store.transfers import StoreError
from longhaul.store.uploader import TierChange, Uploader

DEADLINE_S = 30


@pytest.fixture
def uploader_to() -> Iterator[Callable[..., Uploader]]:
    made: list[Uploader] = []

    def uploader_to(tier: RemoteTier, keep_last: int = 9, keep_every: int = 0, owner=lambda: True):
        made.append(
            Uploader(
                tier,
                still_owner=owner,
                clock=RealClock(),
                keep_last=keep_last,
                keep_every=keep_every,
            )
        )
        return made[-1]

    yield uploader_to
    for uploader in made:
        uploader.close()


def steps(tier: RemoteTier) -> list[int]:
    return [entry.step for entry in tier.checkpoints()]


def told(uploader: Uploader, until: Callable[[TierChange], bool]) -> list[TierChange]:
    """Changes up to the first for which `until` holds."""
    seen: list[TierChange] = []
    clock = RealClock()
    began = clock.monotonic()
    while not (seen and until(seen[-1])):
        seen.extend(uploader.poll())
        assert clock.monotonic() - began < DEADLINE_S, f"it never came; told: {seen}"
    return seen


def test_checkpoints_are_sent_in_order_and_told(tmp_path: Path, fill, tier_of, uploader_to) -> None:
    for step in (10, 20, 30):
        fill(tmp_path / "run" / f"step-{step}", step)
    uploader = uploader_to(tier_of())
    for checkpoint in reversed(catalogue(tmp_path / "run")):
        uploader.offer(checkpoint, {})
    assert uploader.settle(DEADLINE_S)
    uploads = [change for change in uploader.poll() if change.kind == "uploaded"]
    assert sorted(change.step for change in uploads) == [10, 20, 30]
    assert uploads[0].data["size_bytes"] > 0
    assert steps(uploader.tier) == [10, 20, 30]
    assert len(uploader.held) == 3
    assert uploader.pending == frozenset()


def test_a_store_that_is_away_is_told_once_and_sent_to_later_in_order(
    tmp_path: Path, fill, tier_of, uploader_to, store
) -> None:
    store.away = True
    uploader = uploader_to(tier_of(store))
    for step in (10, 20, 30):
        fill(tmp_path / "run" / f"step-{step}", step)
        uploader.offer(catalogue(tmp_path / "run")[-1], {})
    assert not uploader.settle(DEADLINE_S)
    assert uploader.pending == {10, 20, 30}
    store.away = False
    seen = told(uploader, lambda change: change.kind == "uploaded" and change.step == 30)
    assert [(change.kind, change.step) for change in seen] == [
        ("store-away", 10), ("store-back", 10), ("uploaded", 10), ("uploaded", 20),
        ("uploaded", 30),
    ]  # fmt: skip
    assert "503 Slow Down; it stays here and is sent later, in order" in seen[0].data["message"]
    assert [name for name in store.written if name == "manifest.json"] == ["manifest.json"] * 3


def test_a_backlog_is_what_the_tier_would_keep_of_it(
    tmp_path: Path, fill, tier_of, uploader_to, store
) -> None:
    store.away = True
    uploader = uploader_to(tier_of(store), keep_last=2, keep_every=40)
    for step in range(10, 90, 10):
        fill(tmp_path / "run" / f"step-{step}", step)
        uploader.offer(catalogue(tmp_path / "run")[-1], {})
    assert uploader.pending == {10, 40, 70, 80}  # the first may be under way
    dropped = [c.step for c in uploader.poll() if c.kind == "upload-dropped"]
    assert dropped == [20, 30, 50, 60]


def test_old_ones_are_removed_there_but_never_the_newest_good_one(
    tmp_path: Path, fill, tier_of, uploader_to
) -> None:
    uploader = uploader_to(tier_of(), keep_last=1, keep_every=40)
    for step in range(10, 90, 10):
        fill(tmp_path / "run" / f"step-{step}", step)
        entry = catalogue(tmp_path / "run")[-1]
        manifests = {e.step: e.manifest_sha256 for e in catalogue(tmp_path / "run")}
        healths = {30: CheckpointHealth("good", manifests.get(30, ""))}
        uploader.offer(entry, healths)
        assert uploader.settle(DEADLINE_S)
    uploader.close()
    assert steps(uploader.tier) == [30, 40, 80]
    gone = [change.step for change in uploader.poll() if change.kind == "remote-removed"]
    assert gone == [10, 20, 50, 60, 70]


def test_of_two_states_of_one_step_the_newer_one_stays(
    tmp_path: Path, fill, tier_of, uploader_to
) -> None:
    uploader = uploader_to(tier_of())
    for time, content in enumerate((b"before the rollback", b"after it"), 1):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        folder = fill(tmp_path / "run" / "step-10", 10, content, float(time))
        uploader.offer(catalogue(tmp_path / "run")[0], {})
        assert uploader.settle(DEADLINE_S)
    uploader.close()
    (left,) = uploader.tier.checkpoints()
    assert left.manifest_sha256 == catalogue(folder.parent)[0].manifest_sha256


def test_a_checkpoint_that_is_gone_or_damaged_does_not_hold_up_the_next(
    tmp_path: Path, fill, tier_of, uploader_to
) -> None:
    for step in (10, 20, 30):
        fill(tmp_path / "run" / f"step-{step}", step)
    entries = catalogue(tmp_path / "run")
    shutil.rmtree(entries[0].path)
    (entries[1].path / "state.json").write_bytes(b"stale")
    uploader = uploader_to(tier_of())
    for entry in entries:
        uploader.offer(entry, {})
    assert uploader.settle(DEADLINE_S)
    kinds = [(change.kind, change.step) for change in uploader.poll()]
    assert kinds == [("upload-dropped", 10), ("upload-dropped", 20), ("uploaded", 30)]


def test_an_attempt_that_was_fenced_commits_nothing(
    tmp_path: Path, fill, tier_of, uploader_to, store
) -> None:
    fill(tmp_path / "run" / "step-10", 10)
    uploader = uploader_to(tier_of(store), owner=lambda: False)
    uploader.offer(catalogue(tmp_path / "run")[0], {})
    uploader._thread.join(DEADLINE_S)
    assert store.written == ["state.json"]
    assert steps(uploader.tier) == []


def test_what_is_poisoned_is_taken_out_of_the_tier_and_of_the_queue_even_while_it_is_away(
    tmp_path: Path, fill, tier_of, uploader_to, store
) -> None:
    """Decided while the store is away: first what is poisoned goes, then the rest comes."""
    uploader = uploader_to(tier_of(store))
    for step in (10, 20):
        fill(tmp_path / "run" / f"step-{step}", step)
        uploader.offer(catalogue(tmp_path / "run")[-1], {})
    assert uploader.settle(DEADLINE_S)
    store.away = True
    for step in (30, 40):
        fill(tmp_path / "run" / f"step-{step}", step)
        uploader.offer(catalogue(tmp_path / "run")[-1], {})
    told(uploader, lambda change: change.kind == "store-away")
    entries = {entry.step: entry.manifest_sha256 for entry in catalogue(tmp_path / "run")}
    recorded = {step: CheckpointHealth("poisoned", entries[step]) for step in (20, 30)}
    uploader.withdraw(recorded)
    assert uploader.pending == {40}
    assert not uploader.all_sent
    assert uploader.held == {entries[10], entries[20]}
    store.away = False
    seen = told(uploader, lambda change: change.kind == "uploaded")
    kinds = [(change.kind, change.step) for change in seen if change.kind != "store-back"]
    assert kinds == [("upload-dropped", 30), ("remote-removed", 20), ("uploaded", 40)]
    uploader.close()
    assert steps(uploader.tier) == [10, 40]


def test_what_is_poisoned_while_it_is_sent_never_gets_its_manifest(
    tmp_path: Path, fill, tier_of, uploader_to, store
) -> None:
    fill(tmp_path / "run" / "step-10", 10)
    (entry,) = catalogue(tmp_path / "run")
    store.hangs.add("state.json")
    uploader = uploader_to(tier_of(store))
    uploader.offer(entry, {})
    clock = RealClock()
    began = clock.monotonic()
    while "state.json" not in store.written:
        assert clock.monotonic() - began < DEADLINE_S
    uploader.withdraw({10: CheckpointHealth("poisoned", entry.manifest_sha256)})
    store.released.set()
    assert uploader.settle(DEADLINE_S)
    uploader.close()
    assert "manifest.json" not in store.written
    assert [change.kind for change in uploader.poll()] == ["upload-dropped"]


def test_of_a_step_made_again_a_poisoned_copy_never_counts_as_the_newer_one(
    tmp_path: Path, fill, tier_of, uploader_to
) -> None:
    """The clock was set back between the two: the poisoned one looks newer."""
    tier = tier_of()
    for name, content, time in (("sound", b"sound", 1.0), ("bad", b"diverged", 2.0)):
        tier.send(fill(tmp_path / name / "step-10", 10, content, time), lambda: True)
    (bad,) = catalogue(tmp_path / "bad")
    (sound,) = catalogue(tmp_path / "sound")
    recorded = {
        10: CheckpointHealth("good", sound.manifest_sha256, {bad.manifest_sha256: "poisoned"})
    }
    fill(tmp_path / "run" / "step-20", 20)
    uploader = uploader_to(tier)
    uploader.offer(catalogue(tmp_path / "run")[0], recorded)
    assert uploader.settle(DEADLINE_S)
    uploader.close()
    left = [entry.manifest_sha256 for entry in tier.checkpoints()]
    assert left[0] == sound.manifest_sha256
    assert bad.manifest_sha256 not in left


class Owner:
    """The lease, lost at a moment of the test's choosing."""

    def __init__(self) -> None:
        self.ours = True

    def __call__(self) -> bool:
        return self.ours


@pytest.mark.parametrize("why", ["not kept", "poisoned", "unfinished"])
def test_nothing_is_removed_there_once_the_lease_is_lost(
    tmp_path: Path, fill, tier_of, uploader_to, store, monkeypatch, why: str
) -> None:
    tier, owner = tier_of(store), Owner()
    fill(tmp_path / "run" / "step-10", 10)
    uploader = uploader_to(tier, keep_last=1, owner=owner)
    uploader.offer(catalogue(tmp_path / "run")[0], {})
    assert uploader.settle(DEADLINE_S)
    (first,) = tier.checkpoints()
    if why == "unfinished":
        first = tmp_path / "remote" / "step-5-0123456789ab"
        first.mkdir()
    removed: list[str] = []
    monkeypatch.setattr(tier, "_remove", removed.append)
    send = tier.send

    def lost_after(*arguments):
        sent = send(*arguments)
        owner.ours = False
        return sent

    monkeypatch.setattr(tier, "send", lost_after)
    if why == "poisoned":
        owner.ours = False
        uploader.withdraw({10: CheckpointHealth("poisoned", first.manifest_sha256)})
    else:
        if why == "unfinished":
            uploader.keep_last = 9
        fill(tmp_path / "run" / "step-20", 20)
        uploader.offer(catalogue(tmp_path / "run")[1], {})
    uploader._thread.join(DEADLINE_S)
    assert not uploader._thread.is_alive(), "who is fenced sends nothing more"
    assert removed == []


def test_closing_does_not_wait_for_a_store_that_is_away(
    tmp_path: Path, fill, tier_of, uploader_to, store
) -> None:
    store.away = True
    tier = tier_of(store)
    tier.files.patience = type(tier.files.patience)(first_pause_s=3600.0)
    uploader = uploader_to(tier)
    fill(tmp_path / "run" / "step-10", 10)
    uploader.offer(catalogue(tmp_path / "run")[0], {})
    assert not uploader.settle(DEADLINE_S)
    uploader.close()
    assert not uploader._thread.is_alive()


def test_what_the_tier_would_not_keep_is_not_sent_and_nothing_is_sent_twice(
    tmp_path: Path, fill, tier_of, uploader_to, store
) -> None:
    folders = [fill(tmp_path / "run" / f"step-{step}", step) for step in (10, 20, 30)]
    tier = tier_of(store)
    tier.send(folders[2], lambda: True)
    tier.send(folders[1], lambda: True)
    store.written.clear()
    fill(tmp_path / "run" / "step-40", 40)
    uploader = uploader_to(tier_of(store), keep_last=2)  # a new attempt knows nothing
    for _ in range(3):
        for entry in catalogue(tmp_path / "run"):
            uploader.offer(entry, {})
        assert uploader.settle(DEADLINE_S)
    uploader.close()
    assert store.written == ["state.json", "manifest.json"]
    assert steps(uploader.tier) == [30, 40]


class RunLog:
    """Stands for a mirror: what is done with it, in order, among what else is done in a store."""

    def __init__(self, written: list[str]) -> None:
        self.written = written
        self.taken = self.away = False

    def send(self, still_owner) -> int:
        if self.taken:
            raise PlaceTaken("it is another run's", "rename one")
        if self.away:
            raise StoreError("no answer")
        self.written.append("the book")
        return 0


@pytest.fixture
def with_book(tier_of, store) -> Iterator[tuple[Uploader, RunLog]]:
    run_log = RunLog(store.written)
    uploader = Uploader(
        tier_of(store), still_owner=lambda: True, clock=RealClock(), keep_last=9, keep_every=0,
        run_log=run_log,
    )  # fmt: skip
    yield uploader, run_log
    uploader.close()


def test_the_book_is_there_before_the_checkpoint_that_needs_it(
    tmp_path: Path, fill, store, with_book
) -> None:
    uploader, _ = with_book
    for step in (10, 20):
        fill(tmp_path / "run" / f"step-{step}", step)
        uploader.offer(catalogue(tmp_path / "run")[-1], {})
        assert uploader.settle(DEADLINE_S)
    kinds = [name for name in store.written if name in ("the book", "manifest.json")]
    assert kinds == ["the book", "manifest.json"] * 2
    assert [name for name in store.written if name != "the book"][:1] == ["state.json"]


def test_without_the_book_no_checkpoint_is_sent(tmp_path: Path, fill, store, with_book) -> None:
    uploader, run_log = with_book
    run_log.away = True
    fill(tmp_path / "run" / "step-10", 10)
    uploader.offer(catalogue(tmp_path / "run")[-1], {})
    told(uploader, lambda change: change.kind == "store-away")
    assert store.written == []
    run_log.away = False
    told(uploader, lambda change: change.kind == "uploaded")
    assert store.written[0] == "the book"


def test_what_was_decided_goes_by_itself(store, with_book) -> None:
    uploader, _ = with_book
    uploader.offer_run_log()
    assert uploader.settle(DEADLINE_S)
    assert store.written == ["the book"]
    assert list(uploader.poll()) == []


def test_where_another_run_has_its_place_nothing_is_sent_and_nothing_held_back(
    tmp_path: Path, fill, store, with_book
) -> None:
    uploader, run_log = with_book
    run_log.taken = True
    fill(tmp_path / "run" / "step-10", 10)
    uploader.offer(catalogue(tmp_path / "run")[-1], {})
    (change,) = told(uploader, lambda change: change.kind == "store-taken")
    assert change.data["message"] == "it is another run's; rename one"
    fill(tmp_path / "run" / "step-20", 20)
    uploader.offer(catalogue(tmp_path / "run")[-1], {})
    uploader.offer_run_log()
    assert uploader.settled
    assert uploader.taken
    assert uploader.pending == frozenset()
    assert store.written == []


def position(draw: int) -> bytes:
    return json.dumps({"facts": {"progress": {"position": {"draw": draw}}}}).encode()


def test_where_checkpoints_go_on_in_the_data_is_asked_of_the_tier(
    tmp_path: Path, fill, tier_of
) -> None:
    for step in (10, 20):
        fill(tmp_path / "run" / f"step-{step}", step, position(step * 4))
        tier_of().send(tmp_path / "run" / f"step-{step}", lambda: True)
    uploader = Uploader(
        tier_of(), still_owner=lambda: True, clock=RealClock(), keep_last=9, keep_every=0,
    )  # fmt: skip
    assert uploader.held_states == []
    uploader.learn()
    assert [(there.step, draw) for there, draw in uploader.held_states] == [(10, 40), (20, 80)]
    next((tmp_path / "remote").glob("step-10-*/state.json")).write_bytes(position(41))
    other = Uploader(
        tier_of(), still_owner=lambda: True, clock=RealClock(), keep_last=9, keep_every=0,
    )  # fmt: skip
    other.learn()
    assert [draw for _, draw in other.held_states] == [80], "bytes that differ tell nothing"
