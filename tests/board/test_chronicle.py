from dataclasses import replace

import pytest

from fakes import FakeClock
from longhaul.board.chronicle import MOST_ENTRIES, chronicle, in_short
from longhaul.board.facts import read_facts
from longhaul.logbook.folder import create_run


@pytest.fixture(scope="module")
def facts(told):
    return read_facts(told, FakeClock())


def test_the_run_in_short_tells_progress_trouble_and_price(facts):
    said = in_short(facts)
    for words in (
        "240 of 2,400 steps", "and finished", "4 incidents", "rolled back twice",
        "was restarted once", "without a person", "45 steps had to be made again",
    ):  # fmt: skip
        assert words in said


def test_the_chronicle_tells_what_was_seen_done_and_paid_in_order(facts):
    entries = chronicle(facts)
    assert [entry.time for entry in entries] == sorted(entry.time for entry in entries)
    (spike,) = [entry for entry in entries if entry.text.startswith("The loss rose")]
    assert spike.tone == "alarm"
    assert "rolled back from step 70 to 60" in spike.then.lower()
    assert "10 steps lost" in spike.then
    texts = " ".join(entry.text for entry in entries)
    for words in (
        "The run began on node-7", "ended at step 165 without a word", "torch 2.12.0 → 2.13.0",
        "Note by anna", "Finished after 240 steps",
    ):  # fmt: skip
        assert words in texts


def test_who_decided_by_hand_is_told_with_the_reason(facts, new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.decide("set", 5, "anna", "spikes", path="optim.lr", value=1e-4, old=3e-4)
    story.event("rolled-back", 3, data={"left": 5, "to": 3, "where": "memory", "took_s": 0.42})
    story.event("optimizer-swapped", 3, data={"old": "adamw", "new": "sgdw", "state": "fresh"})
    texts = [entry.text for entry in chronicle(read_facts(story.close(), FakeClock()))]
    assert "Back at step 3 from memory in 0.4 s." in texts
    assert "The optimizer was swapped: adamw → sgdw." in texts
    assert "Anna set optim.lr 0.0003 → 0.0001: spikes." in texts


def test_a_long_story_is_cut_in_the_middle_and_says_so(facts):
    note = next(r for r in facts.records if getattr(r, "kind", "") == "note")
    entries = chronicle(replace(facts, records=(*facts.records, *[note] * 1000)))
    assert len(entries) == MOST_ENTRIES + 1
    assert "entries are left out" in entries[MOST_ENTRIES // 2].text
    assert "Finished" in entries[-1].text


def test_an_empty_run_says_that_nothing_was_trained(tmp_path):
    empty = read_facts(create_run(tmp_path / "empty", FakeClock()), FakeClock())
    assert in_short(empty) == "Nothing has been trained yet."
    assert chronicle(empty) == []


def test_a_live_run_without_trouble(new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 20)
    said = in_short(replace(read_facts(story.close(), FakeClock()), state="live"))
    assert "is training now" in said
    assert "Nothing went wrong." in said
