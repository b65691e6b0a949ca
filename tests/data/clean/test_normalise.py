import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longhaul.config.corpus import CleanSection
from longhaul.data.clean.normalise import REPLACEMENTS, normalise

ALL = CleanSection(whitespace=True, characters=True)
NFC = CleanSection(whitespace=True, characters=True, unicode="NFC")
MESSY = st.text(
    st.sampled_from("ab\\ \t\n\r\v\f\x85\u2028\u00a0\u200b\u200d\ufeff\u00ad\x00\x1b[0m;é\u0301")
)


def is_subsequence(short: str, long: str) -> bool:
    rest = iter(long)
    return all(character in rest for character in short)


def replaced(text: str, *switches: str) -> str:
    for switch in switches:
        text = "".join(REPLACEMENTS[switch].get(character, character) for character in text)
    return text


@given(MESSY | st.text(), st.sampled_from(["whitespace", "characters", "both"]))
@example("a\\\r\nb \\", "both")
@example("\x1b[31mred\x1b[0m\x1b]0;title\x07", "both")
def test_no_switch_ever_adds_a_character(text, which):
    names = ["characters", "whitespace"] if which == "both" else [which]
    switches = CleanSection.model_validate(dict.fromkeys(names, True))
    result, changed = normalise(text, switches)
    assert is_subsequence(result, replaced(text, *names))
    assert bool(changed) == (result != text)
    assert normalise(result, switches) == (result, [])


@given(MESSY | st.text())
def test_composing_letters_adds_nothing_either(text):
    result, _ = normalise(text, NFC)
    taken_apart = unicodedata.normalize("NFD", replaced(text, "characters", "whitespace"))
    assert is_subsequence(unicodedata.normalize("NFD", result), taken_apart)
    assert unicodedata.is_normalized("NFC", result)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("one\r\ntwo\rthree\f four", "one\ntwo\nthree\n four"),
        ("one  \t\ntwo \n", "one\ntwo\n"),
        ("\n  \n  indented\n", "  indented\n"),
        ("a\n\n\n\n\n\nb\n\n\nc\n\n\n", "a\n\n\nb\n\n\nc\n"),
        ("no\u00a0break\u2009thin", "no break thin"),
        ("soft\u00adhyphen zero\u200bwidth\ufeff", "softhyphen zerowidth"),
        ("\x1b[1;31mred\x1b[0m bell\x07 nul\x00", "red bell nul"),
        ("one\ftwo", "one\ntwo"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f469\u200d\U0001f680", None),
        ("\\begin{align}\n\ta &= b \\\\\n\\end{align}\n", None),
        ("    code\n\n\ndef f():\n\treturn 1\n", None),
        ("日本語\u3000の文\n", None),
    ],
)
def test_what_is_cut_and_what_stays(before, after):
    assert normalise(before, ALL)[0] == (before if after is None else after)


def test_letters_and_accents_are_composed_on_demand():
    assert normalise("cafe\u0301", ALL)[0] == "cafe\u0301"
    assert normalise("cafe\u0301", NFC) == ("caf\u00e9", ["unicode"])


def test_a_run_of_a_million_spaces_costs_a_million():
    text = f"a{' ' * 1_000_000}b"
    assert normalise(text, ALL) == (text, [])
