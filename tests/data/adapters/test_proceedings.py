from longhaul.data.adapters.proceedings import HEADS, HYPHENS, MARK_UP, adapt_proceedings
from longhaul.data.adapters.records import Record
from longhaul.data.removed import Removed


def adapted(text):
    removed = Removed()
    made = list(adapt_proceedings(iter([Record("p.txt", {"text": text}, "text")]), removed))
    return made[0].document.text if made else None, removed


def test_pages_lose_their_heads_feet_and_numbers():
    pages = [
        f"Proceedings of the 12th Meeting\n\nText of page {n}.\nMore of it.\n\n- {n} -\n"
        for n in range(1, 5)
    ]
    text, removed = adapted("\f".join(pages))
    assert text == "\n".join(f"Text of page {n}.\nMore of it." for n in range(1, 5))
    assert removed.reasons[HEADS].documents == 1
    assert removed.documents == 0


def test_lines_that_stand_at_an_edge_by_chance_stay():
    pages = ["Opening words\none\ntwo\n", "The second page\none\ntwo\n", "In 1848\none\nend\n"]
    text, removed = adapted("\f".join(pages))
    assert text == "Opening words\none\nThe second page\none\nIn 1848\none\nend"
    assert removed.reasons[HEADS].examples == [("p.txt", "two\ntwo")]
    assert adapted("two\n1\f2\ntwo\n")[0] == "two\n1\n2\ntwo"


def test_words_are_put_together_that_a_line_end_parts():
    text, removed = adapted(
        "The commit-\ntee met a well-\nknown guest, a well-known one, in Saint-\nDenis."
    )
    assert text == "The committee met a well-\nknown guest, a well-known one, in Saint-\nDenis."
    assert removed.reasons[HYPHENS].examples == [("p.txt", "committee")]


def test_marks_of_speeches_go():
    text, removed = adapted(
        '<CHAPTER ID=1>\nVoting time\n<SPEAKER ID=2 NAME="Berger">\nI < you.\n<P>\n'
    )
    assert text.strip() == "Voting time\nI < you."
    assert removed.reasons[MARK_UP].documents == 1
