import json
from hashlib import sha256

import pytest

from longhaul.data.lint import repeats
from longhaul.data.lint.findings import is_telling
from longhaul.data.lint.repeats import Duplicates, Lines
from longhaul.data.lint.signs import CHECKS, DocumentSigns, Seen, Sign

PROSE = "It was a bright cold day in April,\nand the clocks were striking thirteen.\n"


def signs_in(*texts):
    seen = DocumentSigns()
    for number, text in enumerate(texts):
        seen.see(f"books:{number}", text)
    return {sign.kind: sign for sign in seen.found()}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("escaped line ends", PROSE.replace("\n", "\\n") * 2),
        ("escaped line ends", json.dumps(PROSE * 3)),
        ("doubled backslashes", "a \\\\d b \\\\\\\\ c \\\\n and the rest of it."),
        ("HTML entities", "Tom &amp; Jerry &lt;b&gt; &#8217; and the rest of it."),
        ("runs of white space", "one" + " " * 60 + "two and the rest of all of it."),
        ("runs of white space", "one" + "\n" * 9 + "two and the rest of all of it."),
        ("white space behind lines", PROSE.replace("\n", "  \n") * 3),
        ("mixed line ends", PROSE + PROSE.replace("\n", "\r\n")),
        ("replacement characters", "na\ufffdve, and the rest of all of it."),
        ("text in a wrong encoding", "naïve café, and so on".encode().decode("latin-1") * 2),
        ("text in a wrong encoding", "it’s ‘so’, and".encode().decode("cp1252", "replace") * 3),
        ("text in a wrong encoding", "Новое имя, на два дома: кино.".encode().decode("latin-1")),
        ("control characters", "form\x1bfeed, and the rest of all of it."),
        ("lines beyond 10,000 characters", "word " * 2500),
        ("near-empty documents", "404 not found\n"),
    ],
)
def test_each_sign_is_told_with_where_it_is(kind, text):
    found = signs_in(PROSE, text, "Something else altogether, with words.")
    # What one kind of damage leaves may be of two kinds.
    along = {"carriage returns in some documents"} if "line ends" in kind else set()
    along |= {"control characters"} if "encoding" in kind else set()
    assert {kind} <= set(found) <= {kind} | along
    assert found[kind].documents == 1
    assert found[kind].examples[0].startswith("books:1: ")


@pytest.mark.parametrize(
    "text",
    [
        PROSE * 100,
        'print("one\\n")\nprint("two\\t")\nprint("three\\n")\nprint("four")\n' * 10,
        "AT&amp;T was mentioned once. " + PROSE * 50,
        "Zwölf Boxkämpfer jagen Viktor – “quer” über den großen Sylter Deich… Ça va, São Paulo?",
        "Съешь ещё этих мягких французских булок, да выпей чаю. Ðelta og Ñandú.",
        "naïve Ümläute\tand tabs\nand line ends, and more of them\n",
        "\\begin{align}\n  a &= b \\\\\n  c &= d \\\\\n\\end{align}\n" * 5,
        're.compile(r"\\d+\\\\\\w")\nre.compile(r"\\s")\n' * 5,
    ],
)
def test_what_text_and_code_have_now_and_then_is_no_sign(text):
    assert signs_in(text) == {}


def test_a_share_counts_documents_that_could_show_the_sign():
    doubled = "r'\\\\d\\\\s\\\\w' and nothing else in it"
    clean = "r'\\d\\s\\w' and nothing else in it at all"
    found = signs_in(*[PROSE] * 90, *[clean] * 9, doubled)
    assert found["doubled backslashes"].share == 0.1


def sign_of(kind, documents, eligible):
    check = next(check for check in CHECKS if check.kind == kind)
    return Sign(check, documents, eligible)


def test_a_sign_is_telling_beyond_its_floor_or_where_other_sources_have_none():
    kind = "HTML entities"  # floor 2 %
    assert not is_telling(sign_of(kind, 0, 1000))
    assert not is_telling(sign_of(kind, 15, 1000))
    assert is_telling(sign_of(kind, 20, 1000))
    assert is_telling(sign_of(kind, 15, 1000), [sign_of(kind, 0, 5000)])
    assert not is_telling(sign_of(kind, 15, 1000), [sign_of(kind, 50, 5000)])
    assert not is_telling(sign_of(kind, 15, 1000), [sign_of(kind, 0, 100)]), "too few to compare"
    assert not is_telling(sign_of(kind, 9, 1000), [sign_of(kind, 0, 100_000)])
    assert is_telling(sign_of(kind, 1, 5)), "one of a handful of documents"
    assert not is_telling(sign_of(kind, 2, 50)), "two of fifty may be chance"
    assert not is_telling(sign_of("carriage returns in some documents", 100, 100)), "its way"


def test_where_in_a_source_a_sign_is_stays_known_in_fixed_memory():
    sign = sign_of("HTML entities", 0, 0)
    for ordinal in range(10_000):
        sign.add(ordinal, "x", "text", Seen(ordinal // 1000 == 3))
    assert len(sign.where) <= 64
    assert sum(sign.where) == sign.documents == 1000
    affected = [place * sign.stretch for place, count in enumerate(sign.where) if count]
    assert 2700 <= min(affected) <= 3000
    assert max(affected) <= 4000


def test_copies_are_counted_beyond_the_first():
    copies = Duplicates()
    for number, text in enumerate([b"the same"] * 5 + [b"another"]):
        copies.see(text * 2, f"books:{number}")
    assert copies.share() == pytest.approx(4 / 6)
    assert copies.examples[0].startswith("books:1: ")


def test_lines_that_many_documents_share_are_told_the_most_frequent_first():
    notice, other = "Subscribe to our newsletter!", "All rights reserved, 2019."
    texts = [f"Text {n} of its own, {n * n}.\n{notice}\n{notice}" for n in range(6)]
    texts[:4] = [f"{text}\n  {other}" for text in texts[:4]]
    lines = Lines()
    for text in texts:
        lines.see(text)
    assert lines.most_frequent(3) == [(notice, 6), (other, 4)], "in how many, not how often"


def test_memory_is_bounded_and_shares_stay_right(monkeypatch):
    """Half of the documents are copies; one line is in all of them."""
    monkeypatch.setattr(repeats, "_MOST_DIGESTS", 200)
    monkeypatch.setattr(repeats, "_MOST_LINES", 50)
    copies, lines = Duplicates(), Lines()
    line = "the very same line in all of them"
    for number in range(4000):
        own = f"a line of its own, number {number // 2}"
        copies.see(sha256(own.encode()).digest(), "x")
        lines.see(f"{own}\n{line}")
        assert len(copies._counts) <= 200
        assert len(lines._counts) <= 50
    assert copies.share() == pytest.approx(0.5, abs=0.02)
    assert lines.most_frequent(1000) == [(line, 4000)]
