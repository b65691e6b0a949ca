import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.errors import UsageError
from longhaul.logbook.segments import (
    SegmentNumber,
    SegmentTaken,
    by_opening,
    find_segment,
    next_major,
    next_minor,
    open_segment,
    read_segments,
)

numbers = st.builds(SegmentNumber, st.integers(1, 300), st.integers(0, 300))


@settings(max_examples=100, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=10))
def test_numbers_sort_as_integers_and_survive_their_text(some):
    ordered = sorted(some)
    assert ordered == sorted(some, key=lambda number: (number.major, number.minor))
    assert [SegmentNumber.parse(str(number)) for number in ordered] == ordered


def test_numbers_read_as_people_write_them():
    assert str(SegmentNumber(1, 0)) == "1.00"
    assert SegmentNumber.parse("12.41") < SegmentNumber.parse("12.100")
    assert SegmentNumber.parse("2.99") < SegmentNumber.parse("10.00")
    assert SegmentNumber.parse("1.1") == SegmentNumber(1, 1)


@pytest.mark.parametrize("text", ["", "1", "1.", "1.x", "1.00/..", "-1.0", "١.٢"])
def test_what_is_no_number_is_a_message(text):
    with pytest.raises(UsageError, match="write it like"):
        SegmentNumber.parse(text)


def test_a_segment_is_read_back_as_it_was_opened(folder, make_opening):
    first = make_opening()
    second = make_opening(
        "1.01", parent=SegmentNumber(1, 0), attempt=2, checkpoint=100, step=100, draw=800,
        reason="restart", difference={"optim.lr": (1e-3, 1e-4)}, nodes=("a", "b"),
        fingerprint={"torch": {"threads": 2}},
    )  # fmt: skip
    for opening in (first, second):
        open_segment(folder, opening)
    assert read_segments(folder) == (first, second)
    assert find_segment(folder, "1.1") == second
    assert json.loads((folder.segments / "1.01/settings.json").read_text())["format"] == 1


def test_the_source_difference_is_kept_only_where_there_is_one(folder, make_opening):
    open_segment(folder, make_opening("1.00"))
    open_segment(folder, make_opening("1.01"), "diff --git a b\n")
    assert [p.parent.name for p in folder.segments.glob("*/source.diff")] == ["1.01"]


def test_a_number_is_given_once(folder, make_opening):
    open_segment(folder, make_opening("1.00", reason="mine"))
    with pytest.raises(SegmentTaken, match=r"1\.00"):
        open_segment(folder, make_opening("1.00", reason="theirs"))
    assert read_segments(folder)[0].reason == "mine"


def test_a_crash_while_opening_leaves_a_gap_and_nothing_else(folder, make_opening):
    open_segment(folder, make_opening("1.00"))
    (folder.segments / "1.01").mkdir()
    (folder.segments / "1.02").mkdir()
    (folder.segments / "1.02/settings.json").write_text('{"attempt"')
    assert [str(opening.number) for opening in read_segments(folder)] == ["1.00"]
    assert next_minor(folder, SegmentNumber(1, 0)) == SegmentNumber(1, 3)


def test_minors_go_on_and_forks_open_the_next_major(folder, make_opening):
    assert next_major(folder) == SegmentNumber(1, 0)
    for number in ("1.00", "1.01", "2.00"):
        open_segment(folder, make_opening(number))
    assert next_minor(folder, SegmentNumber(1, 0)) == SegmentNumber(1, 2)
    assert next_minor(folder, SegmentNumber(2, 0)) == SegmentNumber(2, 1)
    assert next_major(folder) == SegmentNumber(3, 0)


def test_an_unknown_segment_names_those_there_are(folder, make_opening):
    open_segment(folder, make_opening("1.00"))
    open_segment(folder, make_opening("1.01"))
    with pytest.raises(UsageError, match=r"1\.07(.|\n)*1\.00, 1\.01"):
        find_segment(folder, "1.07")


def test_after_a_fork_the_newest_segment_may_have_the_smaller_number(make_opening):
    made = [make_opening("1.00"), make_opening("1.01", attempt=3), make_opening("2.00", attempt=2)]
    assert [str(opening.number) for opening in by_opening(made)] == ["1.00", "2.00", "1.01"]
