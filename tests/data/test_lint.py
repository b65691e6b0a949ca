import json

import pytest

from longhaul.data import lint as lint_module
from longhaul.data.documents import Document
from longhaul.data.lint import Lint

PROSE = "It was a bright cold day in April,\nand the clocks were striking thirteen.\n"


def signs_in(*texts):
    seen = Lint()
    for number, text in enumerate(texts):
        seen.see(Document(text, f"books:{number}"))
    return {sign.kind: sign for sign in seen.signs()}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("escaped line ends", PROSE.replace("\n", "\\n") * 2),
        ("escaped line ends", json.dumps(PROSE * 3)),
        ("doubled backslashes", "a \\\\\\ b \\\\\\\\ c \\\\\\ d"),
        ("HTML entities", "Tom &amp; Jerry &lt;b&gt; &#8217;"),
        ("runs of white space", "one" + " " * 60 + "two"),
        ("runs of white space", "one" + "\n" * 9 + "two"),
        ("replacement characters", "na\ufffdve"),
        ("text in a wrong encoding", "naïve café".encode().decode("latin-1")),
        ("text in a wrong encoding", "it’s ‘so’".encode().decode("cp1252", "replace") * 2),
        ("control characters", "form\x1bfeed"),
        ("lines beyond 10,000 characters", "word " * 2500),
    ],
)
def test_each_sign_is_told_with_where_it_is(kind, text):
    found = signs_in(PROSE, text, "Something else altogether.")
    assert set(found) == {kind}
    assert (found[kind].documents, found[kind].share) == (1, pytest.approx(1 / 3))
    assert found[kind].examples[0].startswith("books:1: ")


@pytest.mark.parametrize(
    "text",
    [
        PROSE * 100,
        'print("one\\n")\nprint("two\\t")\nprint("three\\n")\nprint("four")\n' * 10,
        "AT&amp;T was mentioned once. " + PROSE * 50,
        "Zwölf Boxkämpfer jagen Viktor – “quer” über den großen Sylter Deich… Ça va, São Paulo?",
        "naïve Ümläute\tand tabs\r\nand line ends\n",
        "\\begin{align}\n  a &= b \\\\\n  c &= d \\\\\n\\end{align}\n" * 5,
    ],
)
def test_what_text_and_code_have_now_and_then_is_no_sign(text):
    assert signs_in(text) == {}


def test_copies_are_counted_beyond_the_first():
    found = signs_in(*["the same"] * 5, "another")["exact duplicates"]
    assert (found.documents, found.share) == (4, pytest.approx(4 / 6))
    assert found.examples[0].startswith("books:1: ")


def test_lines_that_many_documents_share_are_told_the_most_frequent_first():
    notice, other = "Subscribe to our newsletter!", "All rights reserved, 2019."
    texts = [f"Text {n} of its own, {n * n}.\n{notice}\n{notice}" for n in range(6)]
    texts[:4] = [f"{text}\n  {other}" for text in texts[:4]]
    found = signs_in(*texts)["lines of many documents"]
    assert found.documents == 6, "in how many documents, not how often"
    assert [example.split(": ", 1)[0] for example in found.examples] == [
        "in 6 documents", "in 4 documents",
    ]  # fmt: skip
    assert notice in found.examples[0]


def test_memory_is_bounded_and_shares_stay_right(monkeypatch):
    """Half of the documents are copies; one line is in all of them."""
    monkeypatch.setattr(lint_module, "_MOST_DIGESTS", 200)
    monkeypatch.setattr(lint_module, "_MOST_LINES", 50)
    seen = Lint()
    line = "the very same line in all of them"
    for number in range(4000):
        seen.see(Document(f"a line of its own, number {number // 2}\n{line}", f"books:{number}"))
        assert len(seen._duplicates._counts) <= 200
        assert len(seen._lines._counts) <= 50
    found = {sign.kind: sign for sign in seen.signs()}
    assert found["exact duplicates"].share == pytest.approx(0.5, abs=0.02)
    assert found["lines of many documents"].documents == 4000
