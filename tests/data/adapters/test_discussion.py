import pytest

from longhaul.core.errors import DataError
from longhaul.data.adapters import discussion as discussion_module
from longhaul.data.adapters import records as records_module
from longhaul.data.adapters.discussion import IN_CIRCLE, OFF_CHAIN, adapt_discussions
from longhaul.data.adapters.records import Record
from longhaul.data.removed import Removed


def adapted(*rows):
    removed = Removed()
    records = (Record(f"rc.jsonl:{n}", row, "text") for n, row in enumerate(rows, 1))
    return [made.document for made in adapt_discussions(records, removed)], removed


def comment(ident, parent, text, score=1, thread="t3_post"):
    return {"id": ident, "parent_id": parent, "link_id": thread, "body": text, "score": score}


REDDIT = [
    comment("a", "t3_post", "What do you use for notes?"),
    comment("b", "t1_a", "Paper.", 90),
    comment("c", "t1_a", "A text file."),
    comment("d", "t1_c", "Just one?"),
    comment("e", "t1_d", "One a year."),
    comment("f", "t3_post", "An answer to the post itself.", 50),
]


def test_a_thread_becomes_its_longest_chain_and_the_rest_is_counted():
    (document,), removed = adapted(*REDDIT)
    assert document.text == "What do you use for notes?\n\nA text file.\n\nJust one?\n\nOne a year."
    assert document.name == "rc.jsonl:1"
    examples = removed.reasons[OFF_CHAIN].examples
    assert examples == [
        ("rc.jsonl:6", "An answer to the post itself."),
        ("rc.jsonl:2", "Paper."),
    ]


def test_of_two_longest_chains_the_better_liked_is_taken():
    (document,), _ = adapted(*REDDIT, comment("g", "t1_d", "Two.", 70))
    assert document.text.endswith("Just one?\n\nTwo.")


def test_comments_come_in_any_order_and_deleted_ones_hold_a_chain_together_without_a_word():
    rows = [comment("d", "t1_c", "[deleted]") if row["id"] == "d" else row for row in REDDIT]
    (document,), _ = adapted(*reversed(rows))
    assert document.text == "What do you use for notes?\n\nA text file.\n\nOne a year."


def test_threads_of_one_file_are_told_apart_and_a_post_comes_before_its_comments():
    post = {"id": "post", "title": "Notes", "selftext": "How do you keep them?"}
    other = comment("x", "t3_other", "Elsewhere.", thread="t3_other")
    documents, _ = adapted(REDDIT[0], other, post)
    assert [d.text for d in documents] == [
        "Elsewhere.",
        "Notes\n\nHow do you keep them?\n\nWhat do you use for notes?",
    ]


def test_a_thread_may_be_one_record_with_replies_that_nest():
    thread = {
        "id": 1, "title": "Show: a boat",
        "comments": [
            {"text": "Nice.", "replies": []},
            {"text": "Does it <p>float?</p>", "replies": [{"text": "So far.", "replies": []}]},
        ],
    }  # fmt: skip
    (document,), removed = adapted(thread)
    assert document.text == "Show: a boat\n\nDoes it \nfloat?\n\nSo far."
    assert removed.documents == 1


def test_of_comments_with_one_identity_the_first_has_the_replies():
    again = comment("a", "t3_post", "The same comment, exported twice.")
    (document,), removed = adapted(REDDIT[0], again, REDDIT[2], REDDIT[3])
    assert document.text == "What do you use for notes?\n\nA text file.\n\nJust one?"
    assert removed.reasons[OFF_CHAIN].examples == [("rc.jsonl:2", again["body"])]


def test_parents_in_a_circle_end_nothing():
    circle = [comment("x", "y", "one"), comment("y", "x", "two"), comment("z", "z", "three")]
    documents, removed = adapted(*circle, REDDIT[0], comment("a", "a", "the same identity"))
    assert [d.text for d in documents] == ["three", REDDIT[0]["body"], "the same identity"]
    assert removed.reasons[IN_CIRCLE].documents == 2


def test_what_does_not_fit_in_memory_gives_the_same_documents(monkeypatch):
    many = [
        comment(f"{thread}-{n}", f"t1_{thread}-{n - 1}" if n else f"t3_{thread}", f"{thread} {n}",
                thread=f"t3_{thread}")
        for n in range(5) for thread in range(200)
    ]  # fmt: skip
    whole, _ = adapted(*many)
    spilled = lambda records, key: records_module.in_buckets(records, key, most_held=100)  # noqa: E731
    monkeypatch.setattr(discussion_module, "in_buckets", spilled)
    in_pieces, _ = adapted(*many)
    assert sorted(whole, key=lambda d: d.name) == sorted(in_pieces, key=lambda d: d.name)
    assert len(whole) == 200
    with pytest.raises(DataError, match="names its parent and no thread"):
        adapted(*[{"id": n, "parent": n - 1, "text": "x" * 30} for n in range(9)])
