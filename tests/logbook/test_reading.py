import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeClock
from longhaul.core.records import Decision, Event, StepRecord, to_line
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import JournalFollower, read_journal, read_last

finite = st.floats(allow_nan=False, allow_infinity=False)
moments = st.floats(0, 1e13)
wholes = st.integers(-(1 << 63), (1 << 63) - 1)
anything = st.floats(allow_nan=False)  # NaN is not equal to itself; its own test is below
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
counts = st.integers(0, 2**53)
seconds = st.dictionaries(st.sampled_from(["training", "idle"]), moments, max_size=2)
data = st.dictionaries(texts, st.one_of(texts, wholes, finite, st.none()), max_size=3)
common = {"attempt": st.just(1), "segment": texts, "step": counts, "time": moments}
steps = st.builds(
    StepRecord, **common, draw=counts, next_draw=counts, loss=anything, gradient_norm=anything,
    learning_rate=finite, masked=st.booleans(), sequences=counts, sequence_length=counts,
    seconds=seconds, gauges=st.dictionaries(texts, st.tuples(anything, anything), max_size=2),
)  # fmt: skip
events = st.builds(Event, **common, kind=texts, seconds=seconds, data=data)
decisions = st.builds(Decision, **common, kind=texts, who=texts, reason=texts, data=data)


@settings(max_examples=40, deadline=None)
@given(st.one_of(st.lists(steps, max_size=6), st.lists(events | decisions, max_size=6)), st.data())
def test_a_journal_cut_at_any_byte_reads_back_as_a_prefix(records, cut):
    with tempfile.TemporaryDirectory() as temporary:
        folder = create_run(Path(temporary) / "run", FakeClock())
        journal = Journal(folder, 1)
        for record in records:
            journal.append(record)
        journal.close()
        assert list(read_journal(folder)) == records
        for path in folder.journal.glob("*.jsonl"):
            content = path.read_bytes()
            kept = cut.draw(st.integers(0, len(content)), label="bytes kept")
            path.write_bytes(content[:kept])
            reading = read_journal(folder)
            whole = content[:kept].count(b"\n")
            found = list(reading)
            # A line that lost no more than its newline is whole, too.
            assert found in (records[:whole], records[: whole + 1])
            assert reading.damaged == 0
            assert read_last(folder, 3) == found[-3:]


def test_nan_comes_back_as_nan(folder, make_step):
    journal = Journal(folder, 1)
    journal.append(make_step(loss=float("nan"), gauges={"norm": (1.0, float("nan"))}))
    journal.close()
    (record,) = read_journal(folder)
    assert record.loss != record.loss
    assert record.gauges["norm"][1] != record.gauges["norm"][1]


def test_damaged_lines_are_passed_over_and_counted(folder, make_step):
    lines = [to_line(make_step(step)).encode() + b"\n" for step in range(1, 6)]
    lines[1] = lines[1].replace(b'"loss"', b'"lo\xffs"')
    lines[3] = b"\0" * 300 + b"\n"
    lines.insert(2, b"\n")
    (folder.journal / "000001.pilot.jsonl").write_bytes(b"".join(lines))
    reading = read_journal(folder)
    assert [record.step for record in reading] == [1, 3, 5]
    assert reading.damaged == 2
    assert [record.step for record in read_last(folder, 2)] == [3, 5]


def test_authors_and_kinds_are_merged_by_time_and_attempts_follow_each_other(
    folder, make_step, make_event
):
    leader, supervisor = Journal(folder, 1), Journal(folder, 1, "supervisor")
    leader.append(make_step(10, time=10.0))
    leader.append(make_step(11, time=30.0))
    leader.append(make_event("evaluation", 11, time=30.0))
    supervisor.append(make_event("warning", 0, time=20.0))
    following = Journal(folder, 2)
    following.append(make_step(5, time=25.0, attempt=2))  # the second machine's clock is late
    for journal in (leader, supervisor, following):
        journal.close()
    shown = [(type(r).__name__, r.step, r.time) for r in read_journal(folder)]
    assert shown == [
        ("StepRecord", 10, 10.0), ("Event", 0, 20.0), ("StepRecord", 11, 30.0),
        ("Event", 11, 30.0), ("StepRecord", 5, 25.0),
    ]  # fmt: skip
    assert len(list(read_journal(folder, steps=False))) == 2
    assert len(list(read_journal(folder, events=False))) == 3


def test_the_end_is_what_a_full_reading_ends_with(folder, make_step, make_event, monkeypatch):
    monkeypatch.setattr("longhaul.logbook.journal._ROTATE_BYTES", 4000)
    generator = random.Random(7)
    for attempt in (1, 2, 3):
        journal = Journal(folder, attempt)
        for step in range(1, 40):
            time = attempt * 1000.0 + step
            journal.append(make_step(step, attempt=attempt, time=time))
            if generator.random() < 0.3:
                text = "long " * generator.randrange(4000)
                journal.append(
                    make_event("note", step, attempt=attempt, time=time, data={"t": text})
                )
        journal.close()
    everything = list(read_journal(folder))
    for count in (0, 1, 2, 40, 60, 1000):
        assert (
            read_last(folder, count) == everything[len(everything) - min(count, len(everything)) :]
        )
    only_steps = list(read_journal(folder, events=False))
    assert read_last(folder, 50, events=False) == only_steps[-50:]


def test_the_end_is_found_without_reading_the_rest(folder, make_step):
    path = folder.journal / "000001.pilot.jsonl"
    with path.open("wb") as file:
        file.truncate(2 << 30)  # two sparse gigabytes of zeros
    with path.open("ab") as file:
        file.write(b"\n" + to_line(make_step(9)).encode() + b"\n")
    assert read_last(folder, 1, events=False) == [make_step(9)]


def test_an_empty_run_has_no_records(folder):
    assert list(read_journal(folder)) == []
    assert read_last(folder, 5) == []


def test_decisions_are_read_in_order_with_the_damage_among_them(folder, make_decision, make_event):
    journal = Journal(folder, 1)
    journal.append_durably(make_decision(value=1))
    journal.append(make_event())
    journal.append_durably(make_decision(value=2))
    journal.close()
    path = folder.journal / "000001.pilot.events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"record":"deci\n')
    found, damaged = load_ledger(folder)
    assert [item.value for item in found.overrides["optim.lr"]] == [2]
    assert (found.decisions, damaged) == (2, 1)


def test_a_follower_sees_each_record_once_however_it_was_written_and_stopped(folder, make_step):
    journal, seen, position = Journal(folder, 1), [], None
    for step in range(1, 21):
        journal.append(make_step(step))
        journal.append(make_event_at(step))
        if step % 3 == 0:  # another process each time, which knows what the last one has noted
            follower = JournalFollower(folder, position)
            seen += list(follower.new())
            assert list(follower.new()) == []
            position = follower.position
    journal.close()
    seen += list(JournalFollower(folder, position).new())
    assert seen == list(read_journal(folder))


def test_a_follower_waits_for_the_end_of_a_line_and_passes_over_what_is_none(folder, make_step):
    folder.journal.mkdir(exist_ok=True)
    path = folder.journal / "000001.pilot.jsonl"
    first, second = (to_line(make_step(step)).encode() for step in (1, 2))
    follower = JournalFollower(folder)
    path.write_bytes(first + b"\n" + second[:40])
    assert [record.step for record in follower.new()] == [1]
    assert list(follower.new()) == []
    path.write_bytes(first + b"\n" + second[:40] + b" <torn>\n" + b"\0" * 9 + second + b"\n")
    assert [record.step for record in follower.new()] == [2]


def test_a_follower_forgets_files_of_attempts_long_over(folder, make_step):
    follower = JournalFollower(folder)
    for attempt in range(1, 6):
        journal = Journal(folder, attempt)
        journal.append(make_step(attempt, attempt=attempt))
        journal.close()
        assert [record.attempt for record in follower.new()] == [attempt]
    assert len(follower.position.ends) == 2
    journal = Journal(folder, 4)  # the one before the last may still have a word to say
    journal.append(make_step(9, attempt=4))
    journal.close()
    assert [record.step for record in follower.new()] == [9]


def make_event_at(step):
    return Event(kind="note", attempt=1, segment="1.00", step=step, time=1_000_000.5 + step)
