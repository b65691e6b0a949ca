from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.config.corpus import FilterSection
from longhaul.data.clean import repetition
from longhaul.data.clean.prose import Prose
from longhaul.data.clean.repetition import RepeatedLines, RepeatedWords, repetition_of


def different(number, begin=0):
    return [f"w{begin + n:04d}" for n in range(number)]


@pytest.mark.parametrize(
    ("goes", "stays", "told"),
    [
        ("a\n" * 4 + "b\nc\nd\ne\n" + "long line " * 20, "a\n" * 4 + "b\nc\nd\ne\nf\n"
         + "long line " * 20, "lines > 0.3"),
        ("x" * 30 + "\n" + "x" * 30 + "\n" + "\n".join(different(10)), "x" * 30 + "\n" + "x" * 30
         + "\n" + "\n".join(different(20)), "characters of lines > 0.2"),
        ("\n\n".join(["a\nb", "a\nb", "c\nd\ne\nf\ng\nh\ni"]), "\n\n".join(["a\nb", "a\nb", "c",
         "d\ne\nf\ng\nh\ni"]), "paragraphs > 0.3"),
    ],
)  # fmt: skip
def test_lines_and_paragraphs_are_held_against_the_table(goes, stays, told):
    assert RepeatedLines().reason(Prose(goes)) == f"repeated_lines: {told}"
    assert RepeatedLines().reason(Prose(stays)) is None


def told_of(words):
    return RepeatedWords().reason(Prose(" ".join(words)))


def test_the_run_that_covers_most_is_held_against_the_table():
    times = [word for n in range(10) for word in (*different(2), f"n{n:04d}")]
    assert told_of(times + different(69, 100)) == "repeated_words: top run of 2 > 0.2"
    assert told_of(times + different(70, 100)) is None


def test_copies_of_longer_runs_are_held_against_the_table():
    runs = [word for n in range(4) for word in (*different(5, 10 * n), f"n{n:04d}")]
    again = [word for n in range(4) for word in (*different(5, 10 * n), f"m{n:04d}")]
    rest = 133 - len(runs + again)
    assert told_of(runs + again + different(rest, 100)) == "repeated_words: copied runs of 5 > 0.15"
    assert told_of(runs + again + different(rest + 1, 100)) is None


def counted_plainly(words, length):
    """Most characters in one run, and characters in copies of runs, word by word."""
    runs = [tuple(words[n : n + length]) for n in range(len(words) - length + 1)]
    counts = Counter(runs)
    top = max((c * sum(map(len, run)) for run, c in counts.items() if c > 1), default=0)
    seen, covered = set(), set()
    for place, run in enumerate(runs):
        if run in seen:
            covered.update(range(place, place + length))
        seen.add(run)
    return top, sum(len(words[place]) for place in covered)


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "d"]), max_size=60))
def test_runs_are_counted_as_word_by_word(words):
    prose = Prose(" ".join(words))
    found = dict.fromkeys(range(2, 11), (0, 0))
    begins = [0]
    for word in words:
        begins.append(begins[-1] + len(word))
    for length, first, places in repetition._copied_runs(prose):
        copies = places[places != first]
        found[length] = (
            repetition._top_run(length, first, places, repetition.np.array(begins)),
            repetition._covered(length, copies, prose.lengths),
        )
    assert found == {length: counted_plainly(words, length) for length in range(2, 11)}


@pytest.mark.parametrize("text", ["", "one", "one two", "\n\n"])
def test_texts_of_hardly_a_word_repeat_nothing(text):
    for rule in repetition_of(FilterSection(gopher=True)):
        assert rule.reason(Prose(text)) is None


def test_the_preset_turns_both_on_and_a_switch_one_off():
    assert len(list(repetition_of(FilterSection(gopher=True)))) == 2
    assert list(repetition_of(FilterSection(gopher=True, repeated_words=False))) == [
        RepeatedLines()
    ]
    assert list(repetition_of(FilterSection())) == []


def test_a_line_of_another_indentation_is_no_copy():
    text = "\n".join(f"{' ' * n}}}" for n in range(10))
    assert RepeatedLines().reason(Prose(text)) is None
