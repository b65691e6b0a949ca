import pytest

from longhaul.core.errors import DataError
from longhaul.data.documents import Breakage


def seen(breakage, count):
    breakage.num_seen += count


def test_a_share_within_the_limit_is_accepted_and_named():
    breakage = Breakage("corpus", 0.01)
    seen(breakage, 100)
    breakage.broken("a.jsonl", "not JSON", 17)
    breakage.judge()
    assert "1 broken skipped (a.jsonl:17: not JSON)" in breakage.summary()


def test_a_share_beyond_the_limit_names_share_limit_offenders_and_the_way_out():
    breakage = Breakage("corpus", 0.01)
    seen(breakage, 100)
    breakage.broken("few.jsonl", "no text", 3)
    for line in range(1, 10):
        breakage.broken("worst.jsonl", "not JSON", line)
    with pytest.raises(DataError) as raised:
        breakage.judge()
    shown = str(raised.value)
    assert raised.value.exit_code == 3
    assert "10 of 100" in shown
    assert "max_broken_fraction" in raised.value.remedy
    assert shown.index("worst.jsonl:1: not JSON") < shown.index("few.jsonl:3: no text")
    assert len(breakage.worst()) == 5


def test_a_bad_beginning_of_a_long_file_does_not_stop_early():
    breakage = Breakage("corpus", 0.1)
    seen(breakage, 2_000)
    for _ in range(999):
        breakage.broken("a", "bad")
    breakage.broken("a", "bad")
    assert breakage.fraction == 0.5  # it may still come down to 10 %
    seen(breakage, 10_000)
    breakage.judge()
    assert breakage.summary().startswith("1,000 broken skipped")


def test_hopeless_breakage_stops_reading():
    breakage = Breakage("corpus", 0.001)
    seen(breakage, 5_000)
    for line in range(999):
        breakage.broken("a", "bad", line)
    with pytest.raises(DataError):
        breakage.broken("a", "bad", 999)


def test_empty_files_count_for_nothing_but_are_said():
    breakage = Breakage("corpus", 0.0)
    seen(breakage, 1)
    breakage.empty("pkg/__init__.py")
    breakage.judge()
    assert breakage.summary() == "1 empty left out (such as pkg/__init__.py)"
