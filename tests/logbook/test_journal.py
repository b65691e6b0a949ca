import errno
import os
import threading

import pytest

from longhaul.core.records import Event, StepRecord
from longhaul.logbook import journal as journal_module
from longhaul.logbook.journal import Journal
from longhaul.logbook.reading import read_journal


class Disk:
    """Stands in for `os.write`: takes `room` bytes, then refuses as a full disk does."""

    def __init__(self, monkeypatch):
        self._write = os.write
        self.room = None
        self.code = errno.ENOSPC
        monkeypatch.setattr(journal_module.os, "write", self.write)

    def write(self, descriptor, data):
        if self.room is None:
            return self._write(descriptor, data)
        if self.room == 0:
            raise OSError(self.code, os.strerror(self.code))
        taken = self._write(descriptor, bytes(data)[: self.room])
        self.room -= taken
        return taken


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def steps_in(folder):
    return [record.step for record in read_journal(folder) if isinstance(record, StepRecord)]


def test_every_line_is_there_as_soon_as_append_returns(folder, make_step, make_event):
    journal = Journal(folder, 1)
    written = [make_event("attempt-started"), make_step(1), make_step(2, loss=float("inf"))]
    for number, record in enumerate(written, 1):
        journal.append(record)
        assert list(read_journal(folder)) == written[:number]
    journal.close()


def test_steps_and_events_lie_in_files_of_their_own(folder, make_step, make_event):
    journal = Journal(folder, 7)
    journal.append(make_step())
    journal.append(make_event())
    journal.close()
    names = {path.name for path in folder.journal.glob("*.jsonl")}
    assert names == {"000007.pilot.jsonl", "000007.pilot.events.jsonl"}


def test_a_full_file_is_followed_by_the_next(folder, make_step, monkeypatch):
    monkeypatch.setattr(journal_module, "_ROTATE_BYTES", 1000)
    journal = Journal(folder, 1)
    for step in range(1, 11):
        journal.append(make_step(step))
    journal.close()
    files = sorted(path.name for path in folder.journal.glob("*.jsonl"))
    assert files[:2] == ["000001-0002.pilot.jsonl", "000001-0003.pilot.jsonl"]
    assert steps_in(folder) == list(range(1, 11))
    again = Journal(folder, 1)
    again.append(make_step(11))
    again.close()
    assert steps_in(folder) == list(range(1, 12))


def test_a_full_disk_holds_lines_and_writes_them_later(folder, make_step, disk):
    journal = Journal(folder, 1)
    journal.append(make_step(1))
    disk.room = 17
    journal.append(make_step(2))
    journal.append(make_step(3))
    assert journal.held == 2
    assert steps_in(folder) == [1]
    disk.room = None
    journal.append(make_step(4))
    journal.close()
    reading = read_journal(folder)
    assert [record.step for record in reading] == [1, 2, 3, 4]
    assert reading.damaged == 0


def test_a_piece_that_cannot_be_taken_back_spoils_one_line_only(
    folder, make_step, disk, monkeypatch
):
    def refuse(descriptor, length):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(journal_module.os, "ftruncate", refuse)
    journal = Journal(folder, 1)
    journal.append(make_step(1))
    disk.room = 40
    journal.append(make_step(2))
    disk.room = None
    journal.append(make_step(3))
    journal.close()
    assert steps_in(folder) == [1, 2, 3]
    assert len((folder.journal / "000001.pilot.jsonl").read_bytes().splitlines()) == 4


def test_a_complete_line_that_was_refused_its_newline_is_never_read_twice(
    folder, make_step, disk, monkeypatch
):
    monkeypatch.setattr(journal_module.os, "ftruncate", lambda *arguments: None)
    length = len(journal_module._encoded(make_step(1)))
    journal = Journal(folder, 1)
    journal._reserve.release()
    disk.room = length - 1
    journal.append(make_step(1))
    disk.room = None
    journal.append(make_step(2))
    journal.close()
    assert steps_in(folder) == [1, 2]


def test_the_reserve_lets_a_decision_through_on_a_full_disk(folder, make_decision, disk):
    journal = Journal(folder, 1)
    release = journal._reserve.release

    def release_and_make_room():
        disk.room = None
        return release()

    journal._reserve.release = release_and_make_room
    disk.room = 0
    journal.append_durably(make_decision())
    journal.close()
    assert list(read_journal(folder)) == [make_decision()]
    assert not (folder.journal / ".reserve").exists()


def test_the_reserve_comes_back_when_there_is_space(folder, make_step):
    journal = Journal(folder, 1)
    assert journal._reserve.release()
    for step in range(1, 300):
        journal.append(make_step(step))
    journal.close()
    assert (folder.journal / ".reserve").exists()


def test_what_cannot_be_made_durable_is_raised_and_withdrawn(folder, make_decision, monkeypatch):
    journal = Journal(folder, 1)
    journal.append_durably(make_decision(value=1))

    def refuse(descriptor):
        raise OSError(errno.EIO, "the medium is gone")

    with monkeypatch.context() as broken:
        broken.setattr(journal_module.os, "fsync", refuse)
        with pytest.raises(OSError, match="medium"):
            journal.append_durably(make_decision(value=2))
    journal.append_durably(make_decision(value=3))
    journal.close()
    assert [record.data["value"] for record in read_journal(folder)] == [1, 3]


def test_a_folder_that_is_gone_for_a_while_costs_nothing(folder, make_step):
    journal = Journal(folder, 1)
    hidden = folder.journal.rename(folder.path / "away")
    journal.append(make_step(1))
    assert journal.held == 1
    hidden.rename(folder.journal)
    journal.append(make_step(2))
    journal.close()
    assert steps_in(folder) == [1, 2]


def test_memory_is_bounded_steps_go_first_and_the_loss_is_told(
    folder, make_step, make_event, disk, monkeypatch
):
    monkeypatch.setattr(journal_module, "_MOST_HELD_LINES", 3)
    journal = Journal(folder, 1)
    disk.room = 0
    journal.append(make_event("note"))
    for step in range(1, 6):
        journal.append(make_step(step))
    assert journal.held == 3
    disk.room = None
    journal.append(make_step(6))
    journal.close()
    records = list(read_journal(folder))
    assert steps_in(folder) == [5, 6]
    events = [record for record in records if isinstance(record, Event)]
    assert [event.kind for event in events] == ["note", "warning"]
    assert events[1].data["dropped"] == 4


def test_closing_writes_what_is_held(folder, make_step, disk):
    journal = Journal(folder, 1)
    disk.room = 0
    journal.append(make_step(1))
    disk.room = None
    journal.close()
    assert steps_in(folder) == [1]


def test_text_of_another_encoding_does_not_stop_a_trainer(folder, make_decision):
    journal = Journal(folder, 1)
    journal.append_durably(make_decision(reason="caf\udce9"))
    journal.close()
    assert [record.reason for record in read_journal(folder)] == ["caf?"]


def test_threads_do_not_tear_each_others_lines(folder, make_step, make_event):
    journal = Journal(folder, 1)

    def write_events():
        for number in range(200):
            journal.append(make_event(step=number))

    threads = [threading.Thread(target=write_events) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    reading = read_journal(folder)
    assert (len(list(reading)), reading.damaged) == (600, 0)
