"""A run that is followed tells what one tells that is read anew."""

import os
from dataclasses import replace

import pytest

from fakes import FakeClock
from longhaul.board.facts import RunFacts, facts_of
from longhaul.board.live_run import LiveRun
from longhaul.core.strict import DamagedFile
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import acquire
from longhaul.logbook.queries import compact
from longhaul.logbook.reading import journal_files


def told_by(run: LiveRun) -> RunFacts:
    """All it tells, but for how sums of seconds were rounded."""
    run.refresh()
    found = facts_of(run, FakeClock(), gauges=True)
    spent = {bucket: round(seconds, 6) for bucket, seconds in sorted(found.spent.items())}
    branches = tuple(replace(b, seconds=round(b.seconds, 6)) for b in found.branches)
    return replace(found, goodput=round(found.goodput, 9), spent=spent, branches=branches)


def anew(folder: RunFolder) -> RunFacts:
    with LiveRun(folder) as run:
        return told_by(run)


def test_a_run_that_grows_tells_what_one_tells_that_is_read_at_its_end(new_story):
    story = new_story()
    followed = LiveRun(story.folder)
    assert told_by(followed).state == "new"
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 120)
    assert told_by(followed) == anew(story.folder)
    story.open("1.01", "1.00", 80, "back")
    story.train(80, 210)
    assert told_by(followed) == anew(story.folder)
    story.start(2, resumed_from=200, steps_made=210)
    story.open("1.02", "1.01", 200, "restart")
    story.train(200, 260)
    found = told_by(followed)
    assert found == anew(story.folder)
    assert (found.step, found.tokens_lost) == (260, (40 + 10) * 64 * 1024)


def test_a_live_attempt_that_is_compacted_as_it_goes_is_told_alike(new_story, monkeypatch):
    monkeypatch.setattr("longhaul.logbook.journal._ROTATE_BYTES", 40_000)
    story = new_story()
    lease = acquire(story.folder, FakeClock())
    story.start(lease.attempt)
    story.open("1.00", "", 0, "start")
    story.train(0, 120)
    before = anew(story.folder)
    assert compact(story.folder, FakeClock()) == [1]
    followed = LiveRun(story.folder)
    assert told_by(followed) == before
    unread = LiveRun(story.folder)
    story.train(120, 240)
    assert compact(story.folder, FakeClock()) == [1]
    assert told_by(followed) == anew(story.folder)
    with pytest.raises(DamagedFile, match="another file of that name"):
        unread.refresh()  # its gauges are still to be read, and some are in the journal's tail too


def test_what_was_compacted_is_told_alike_and_followed_on(new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 150)
    story.start(2, resumed_from=100, steps_made=150)
    story.open("1.01", "1.00", 100, "restart")
    story.train(100, 160)
    before = anew(story.folder)
    assert compact(story.folder, FakeClock()) == [1, 2]
    with LiveRun(story.folder) as run:
        assert told_by(run) == before
        story.start(3, resumed_from=160, steps_made=160)
        story.open("1.02", "1.01", 160, "restart")
        story.train(160, 200)
        assert told_by(run) == anew(story.folder)


def test_a_line_counts_once_it_is_whole(new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 20)
    story.close()
    path = next(
        story.folder.journal / f.name for f in journal_files(story.folder.journal) if not f.events
    )
    line = path.read_bytes().splitlines(keepends=True)[-1].replace(b'"step":20', b'"step":21')
    with LiveRun(story.folder) as run:
        assert run.steps_read == 20
        with path.open("ab") as journal:
            journal.write(line[:50])
            journal.flush()
            assert not run.refresh()
            journal.write(line[50:])
            journal.flush()
            assert run.refresh()
        assert run.steps_read == 21
        assert run.steps_since(20).step == (21,)
        assert run.steps_since(21).step == ()


def test_a_torn_line_is_passed_over_and_those_after_it_are_not(new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 5)
    story.close()
    files = [story.folder.journal / f.name for f in journal_files(story.folder.journal)]
    for path in files:
        with path.open("ab") as journal:
            journal.write(b'{"record":"st <torn>\nnonsense\n')
    story.start(1)
    story.train(5, 9)
    with LiveRun(story.folder) as run:
        assert run.steps_read == 9
        assert run.damaged == 1


def test_a_journal_that_has_lost_what_was_read_is_said_to_be_damaged(told, tmp_path, new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 20)
    run = LiveRun(story.folder)
    path = story.folder.journal / next(
        f.name for f in journal_files(story.folder.journal) if not f.events
    )
    os.truncate(path, 100)
    with pytest.raises(DamagedFile, match="100 now"):
        run.refresh()
