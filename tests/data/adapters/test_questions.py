from longhaul.data.adapters.questions import (
    NOT_AMONG_BEST,
    UNANSWERED,
    WITHOUT_QUESTION,
    adapt_questions,
)
from longhaul.data.adapters.records import Record
from longhaul.data.removed import Removed


def adapted(*rows):
    removed = Removed()
    records = (Record(f"posts.jsonl:{n}", row, "text") for n, row in enumerate(rows, 1))
    return [made.document for made in adapt_questions(records, removed)], removed


def answers(*scores, accepted=None):
    return [
        {"text": f"Answer of {score}.", "score": score, "accepted": n == accepted}
        for n, score in enumerate(scores)
    ]


def test_a_question_keeps_its_three_best_answers_the_best_first():
    row = {"title": "Why?", "question": "It says no.", "answers": answers(3, 9, 2, 5, 4)}
    (document,), removed = adapted(row)
    assert document.text == "Why?\n\nIt says no.\n\nAnswer of 9.\n\nAnswer of 5.\n\nAnswer of 4."
    assert document.name == "posts.jsonl:1"
    assert removed.reasons[NOT_AMONG_BEST].examples == [
        ("posts.jsonl:1/1", "Answer of 3."),
        ("posts.jsonl:1/3", "Answer of 2."),
    ]


def test_an_accepted_answer_is_first_whatever_its_score_and_none_below_three_is_taken_else():
    (document,), _ = adapted({"question": "Why?", "answers": answers(3, 1, 2, accepted=1)})
    assert document.text == "Why?\n\nAnswer of 1.\n\nAnswer of 3."
    documents, removed = adapted({"question": "Why?", "answers": answers(2)}, {"question": "How?"})
    assert documents == []
    assert removed.reasons[UNANSWERED].documents == 2


def test_posts_of_a_dump_find_their_question_in_any_order_without_html():
    documents, removed = adapted(
        {"Id": "7", "ParentId": "5", "Body": "<p>Use <code>a &lt; b</code>.</p>", "Score": "12"},
        {"Id": "5", "PostTypeId": "1", "Title": "Less?", "Body": "<p>How?</p>",
         "AcceptedAnswerId": "9"},
        {"Id": "9", "ParentId": "5", "Body": "<p>Like this:</p><pre><code>x\n  y</code></pre>"},
        {"Id": "8", "ParentId": "4", "Body": "<p>To another file.</p>", "Score": "4"},
    )  # fmt: skip
    assert [d.text for d in documents] == ["Less?\n\nHow?\n\nLike this:\n\nx\n  y\n\nUse a < b."]
    assert removed.reasons[WITHOUT_QUESTION].examples == [("posts.jsonl:4", "To another file.")]
