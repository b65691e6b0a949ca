import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.data.adapters.discussion import adapt_discussions
from longhaul.data.adapters.mail import adapt_mail
from longhaul.data.adapters.proceedings import adapt_proceedings
from longhaul.data.adapters.questions import adapt_questions
from longhaul.data.adapters.records import Record, number_of, plain_text
from longhaul.data.removed import Removed

NAMES = st.sampled_from(
    ["id", "parent_id", "parent", "link_id", "body", "text", "title", "score", "comments",
     "replies", "answers", "Id", "ParentId", "AcceptedAnswerId", "accepted"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.floats() | st.text(max_size=5)
    | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=6), max_size=6))
def test_no_record_however_odd_ends_the_reading_and_no_text_is_made_twice(rows):
    for adapt in (adapt_discussions, adapt_questions, adapt_mail, adapt_proceedings):
        records = (Record(f"x:{n}", row, "text") for n, row in enumerate(rows))
        made = [adapted.document for adapted in adapt(records, Removed())]
        assert all(document.text for document in made)
        assert len({document.name for document in made}) == len(made)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>One &amp; two</p><p>three</p>", "One & two\n\nthree"),
        ("<p>Run:</p><pre><code>if a &lt; b:\n    c()</code></pre>", "Run:\n\nif a < b:\n    c()"),
        ('<p>See <a href="x">this</a>.<script>evil()</script></p>', "See this."),
        ("a < b and </c>, no HTML", "a < b and </c>, no HTML"),
        ("Tom &amp; Jerry, as written", "Tom &amp; Jerry, as written"),
    ],
)
def test_html_is_read_as_text_and_other_text_stays(html, text):
    assert plain_text(html) == text


@pytest.mark.parametrize(("value", "number"), [("12", 12), (None, 0), ("?", 0), (float("nan"), 0)])
def test_scores_come_as_numbers_or_text(value, number):
    assert number_of(value) == number
