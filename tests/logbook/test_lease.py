import errno
import json
import re
import shutil
import threading
from dataclasses import asdict, replace

import pytest

from fakes import FakeClock
from longhaul.logbook import holder
from longhaul.logbook import lease as lease_module
from longhaul.logbook.folder import Reserve, create_run
from longhaul.logbook.holder import STALE_S, here
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import (
    GONE_S,
    LeaseHeld,
    RunGone,
    acquire,
    join,
    leave_behind,
    live_holder,
    newest_holder,
    watched_silent,
)


@pytest.fixture
def clock():
    return FakeClock()


def rewrite(folder, **values):
    holder = newest_holder(folder)
    path = folder.leases / f"{holder.attempt:06d}.json"
    path.write_text(json.dumps({"format": 1} | asdict(replace(holder, **values))))


def test_a_live_lease_says_who_holds_it_and_how_to_stop_it(folder, clock):
    acquire(folder, clock)
    clock.advance(7)
    with pytest.raises(LeaseHeld) as held:
        acquire(folder, clock)
    message = str(held.value)
    holder = live_holder(folder, clock)
    for part in (str(holder.pid), holder.place.host, "7.0 s ago", "longhaul stop alpha"):
        assert part in message


def test_a_lease_keeps_a_command_without_its_secrets(folder, clock, monkeypatch):
    address = "http://anna:hunter2@host/text.jsonl?sig=c2lnbmVk"
    monkeypatch.setattr(lease_module.sys, "argv", ["longhaul", "train", "drill", "--data", address])
    acquire(folder, clock)
    assert newest_holder(folder).command == "longhaul train drill --data http://host/text.jsonl"


def test_attempts_rise_over_releases_and_deaths(folder, clock):
    first = acquire(folder, clock)
    first.release()
    assert live_holder(folder, clock) is None
    second = acquire(folder, clock)
    rewrite(folder, started="long ago")  # another process has its number now
    third = acquire(folder, clock)
    assert [first.attempt, second.attempt, third.attempt] == [1, 2, 3]
    assert [lease.is_ours() for lease in (first, second, third)] == [False, False, True]


def test_an_attempt_number_never_comes_again_even_without_its_lease_file(folder, clock, make_step):
    journal = Journal(folder, 4)
    journal.append(make_step())
    journal.close()
    assert acquire(folder, clock).attempt == 5


def test_attempts_go_on_above_one_that_was_made_elsewhere(folder, clock):
    leave_behind(folder, 7, clock)
    assert live_holder(folder, clock) is None
    assert acquire(folder, clock).attempt == 8
    leave_behind(folder, 7, clock)
    assert newest_holder(folder).attempt == 8


def test_heartbeats_keep_a_lease_that_is_seen_from_another_machine(folder, clock, monkeypatch):
    own = acquire(folder, clock)
    monkeypatch.setattr(lease_module, "here", lambda: replace(here(), host="far", boot_id="b"))
    clock.advance(50)
    own.heartbeat()
    clock.advance(50)
    with pytest.raises(LeaseHeld):
        acquire(folder, clock)
    clock.advance(11)
    assert acquire(folder, clock).attempt == 2
    assert not own.is_ours()


def test_a_heartbeat_that_cannot_be_written_is_no_harm(folder, clock):
    own = acquire(folder, clock)
    away = folder.leases.rename(folder.path / "away")
    own.heartbeat()
    away.rename(folder.leases)
    assert own.is_ours()


def test_a_full_disk_keeps_no_heartbeat_and_no_release_from_being_seen(folder, clock, monkeypatch):
    def full(path, body):
        raise OSError(errno.ENOSPC, "No space left on device")

    own = acquire(folder, clock)
    monkeypatch.setattr(holder, "write_bytes", full)
    clock.advance(100.125)
    own.heartbeat()
    assert newest_holder(folder).heartbeat == clock.wall()
    clock.advance(10)
    own.release()
    assert newest_holder(folder).released == clock.wall()


def test_on_a_full_disk_an_attempt_begins_with_the_space_kept_in_reserve(
    folder, clock, monkeypatch
):
    create = holder.create_exclusively

    def full(path, content):
        if folder.reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(path, content)

    Reserve(folder.reserve).refill()
    assert folder.reserve.exists()
    monkeypatch.setattr(holder, "create_exclusively", full)
    own = acquire(folder, clock)
    Reserve(folder.reserve).refill()
    own.renew()
    assert (own.attempt, own.is_ours()) == (2, True)


def test_a_heartbeat_after_the_release_does_not_take_the_lease_back(folder, clock):
    own = acquire(folder, clock)
    own.release()
    own.heartbeat()
    assert newest_holder(folder).released is not None


def seen_from_a_machine_of_the_same_name(monkeypatch):
    place = replace(here(), boot_id="that of another boot, or of another machine")
    monkeypatch.setattr(lease_module, "here", lambda: place)


def test_a_live_lease_is_not_stolen_by_a_machine_of_the_same_name(folder, clock, monkeypatch):
    own = acquire(folder, clock)
    seen_from_a_machine_of_the_same_name(monkeypatch)
    with pytest.raises(LeaseHeld, match="another machine has its name"):
        acquire(folder, clock)

    def beat_meanwhile(seconds):
        clock.advance(seconds)
        own.heartbeat()

    monkeypatch.setattr(lease_module.time, "sleep", beat_meanwhile)
    assert watched_silent(folder, clock) is None
    with pytest.raises(LeaseHeld):
        acquire(folder, clock)
    assert own.is_ours()


@pytest.mark.parametrize("clock_is_off_by", [0.0, -86_400.0, 30.0])
def test_after_a_restart_the_run_is_had_once_its_silence_has_told(
    folder, clock, monkeypatch, clock_is_off_by
):
    """A machine without a battery begins its day in the past; that must not cost a day."""
    acquire(folder, clock)
    seen_from_a_machine_of_the_same_name(monkeypatch)
    monkeypatch.setattr(lease_module.time, "sleep", clock.advance)
    clock.advance(clock_is_off_by)
    began, said = clock.monotonic(), []
    silent = watched_silent(folder, clock, said.append)
    assert clock.monotonic() - began <= STALE_S + 1
    assert acquire(folder, clock, silent).attempt == 2
    assert "waiting up to 1 min" in said[0]


def test_nobody_waits_for_a_holder_that_can_be_looked_at(folder, clock):
    assert watched_silent(folder, clock) is None
    acquire(folder, clock)
    assert watched_silent(folder, clock) is None


def begin_another_run_in_its_place(folder, clock):
    shutil.rmtree(folder.path)
    clock.advance(1)
    return acquire(create_run(folder.path, clock), clock)


def take_away(folder, clock):
    shutil.rmtree(folder.path)


def lose_its_identity(folder, clock):
    folder.identity.unlink()


def lose_its_lease(folder, clock):
    shutil.rmtree(folder.leases)


@pytest.mark.parametrize(
    "happens", [begin_another_run_in_its_place, take_away, lose_its_identity, lose_its_lease]
)
def test_whose_folder_was_taken_away_owns_nothing_and_writes_nothing_there(folder, clock, happens):
    """A new run in the same place begins with attempt 1 as well."""
    own = acquire(folder, clock)
    worker = join(folder, own.attempt, clock)
    other = happens(folder, clock)
    before = {path: path.read_bytes() for path in folder.path.rglob("*.json")}
    assert not own.is_ours()
    assert not worker.is_ours()
    own.heartbeat()
    with pytest.raises(RunGone, match=re.escape(str(folder.path))):
        own.renew()
    own.release()
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*.json")}
    assert other is None or other.is_ours()


def test_a_folder_that_comes_back_soon_ends_nothing(folder, clock):
    own = acquire(folder, clock)
    away = folder.path.rename(folder.path.with_name("away"))
    own.refuse_if_gone(5)
    assert not own.is_ours()
    away.rename(folder.path)
    clock.advance(GONE_S)
    own.refuse_if_gone(5)
    assert own.is_ours()
    folder.path.rename(away)
    clock.advance(1)
    own.refuse_if_gone(5)
    clock.advance(GONE_S)
    with pytest.raises(RunGone, match="at step 5") as gone:
        own.refuse_if_gone(5, elsewhere=lambda: 3)
    assert "step 3 is in the remote tier" in gone.value.remedy
    assert gone.value.exit_code == 17


def test_an_attempt_made_under_this_lease_is_told_from_another_owners(folder, clock):
    own = acquire(folder, clock)
    own.renew()
    assert own.held_at(1)
    assert own.held_at(2)
    assert not own.held_at(3)
    own.release()
    clock.advance(-3600)  # by wall time the next one would come before
    later = acquire(folder, clock)
    assert not later.held_at(2)
    assert later.held_at(3)


def test_keeping_beats_while_the_body_runs_and_releases_after_it(folder, clock):
    own = acquire(folder, clock)
    beaten = threading.Event()
    beat = own.heartbeat
    own.heartbeat = lambda: (clock.advance(1), beat(), beaten.set())
    with own.keep(every_s=0.001):
        assert beaten.wait(30), "no heartbeat came"
        assert live_holder(folder, clock) is not None
    holder = newest_holder(folder)
    assert holder.released is not None
    assert holder.heartbeat > holder.since


def test_of_many_takers_one_wins(folder, clock):
    takers, won, lost = 8, [], []
    together = threading.Barrier(takers)

    def take():
        together.wait()
        try:
            won.append(acquire(folder, clock))
        except LeaseHeld:
            lost.append(1)

    threads = [threading.Thread(target=take) for _ in range(takers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, takers - 1)
    assert won[0].is_ours()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"pid": 3}', b'{"place": {}, "format": 1}']
)
def test_a_damaged_lease_counts_until_it_is_old(folder, clock, content):
    path = folder.leases / "000001.json"
    path.write_bytes(content)
    late = FakeClock(path.stat().st_mtime + 61)
    with pytest.raises(LeaseHeld, match="unknown host"):
        acquire(folder, FakeClock(path.stat().st_mtime + 1))
    assert acquire(folder, late).attempt == 2


def test_other_files_in_the_folder_are_no_leases(folder, clock):
    (folder.leases / "notes.json").write_text("{}")
    (folder.leases / ".000009.json.1-ab.tmp").write_text("{}")
    assert newest_holder(folder) is None
    assert acquire(folder, clock).attempt == 1


def test_a_renewed_lease_fences_what_was_begun_under_the_old_number(folder, clock):
    held = acquire(folder, clock)
    worker = join(folder, held.attempt, clock)
    assert worker.is_ours()
    since = held.since
    clock.advance(9)
    held.renew()
    assert held.attempt == worker.attempt + 1
    assert held.is_ours()
    assert not worker.is_ours()
    assert held.since == since, "it is the same owner as before"
    assert live_holder(folder, clock).attempt == held.attempt
    held.heartbeat()
    assert newest_holder(folder).attempt == held.attempt


def test_who_was_taken_over_cannot_renew_and_nobody_joins_an_old_attempt(folder, clock):
    lost = acquire(folder, clock)
    rewrite(folder, started="long ago")
    taken = acquire(folder, clock)
    with pytest.raises(LeaseHeld, match="another attempt has begun"):
        lost.renew()
    with pytest.raises(LeaseHeld, match="not the newest"):
        join(folder, lost.attempt, clock)
    assert taken.is_ours()


def test_a_worker_on_another_machine_waits_until_it_can_see_the_lease(folder, clock, monkeypatch):
    """Its client of NFS knows the names in a folder as they were a while ago."""
    held = acquire(folder, clock)
    newest = lease_module.newest_holder
    looks = iter([None, None])
    monkeypatch.setattr(lease_module, "newest_holder", lambda folder: next(looks, newest(folder)))
    monkeypatch.setattr(lease_module, "_LOOK_EVERY_S", 0.0)
    assert join(folder, held.attempt, clock).is_ours()
    with pytest.raises(LeaseHeld, match="not the newest"):
        join(folder, held.attempt + 1, clock)
