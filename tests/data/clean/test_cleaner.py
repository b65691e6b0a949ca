import pickle

import pytest

from longhaul.config.data import DataSection, SourceSection
from longhaul.core.errors import RecipeError
from longhaul.data.clean.cleaner import cleaner_of
from longhaul.data.documents import Document
from longhaul.data.removed import CHANGED, Removed


def cleaner(clean=None, filters=None, **source):
    settings = {"sources": ({"path": "x.txt", **source},), "clean": clean or {}}
    data = DataSection.model_validate({**settings, "filters": filters or {}})
    return cleaner_of(data, data.sources[0])


def apply(made, *texts, url=""):
    removed = Removed()
    documents = [Document(text, f"x.txt:{n}", url) for n, text in enumerate(texts, 1)]
    return [made.apply(document, removed) for document in documents], removed


PROSE = "The cat that we have is with the dog. It is to be fed.  \nAda <ada@example.org> knows.\n"


def test_without_settings_there_is_no_cleaner_and_text_is_kept_byte_for_byte():
    assert cleaner() is None
    assert cleaner(filters={"gopher": True}, filtered=False) is None


def test_what_is_changed_stays_and_is_counted_apart_from_what_goes():
    made = cleaner({"whitespace": True, "mask_addresses": True}, {"words": (5, 100)})
    (kept, short, empty), removed = apply(made, PROSE, "Too short.", " \n ")
    assert kept.text == PROSE.replace("  \n", "\n").replace("ada@example.org", "<EMAIL>")
    assert (short, empty) == (None, None)
    assert {reason: counted.documents for reason, counted in removed.reasons.items()} == {
        f"{CHANGED}whitespace": 2, f"{CHANGED}addresses": 1, "words < 5": 1, "nothing left": 1,
    }  # fmt: skip
    assert removed.documents == 2
    assert removed.reasons["words < 5"].examples == [("x.txt:2", "Too short.")]
    assert removed.reasons[f"{CHANGED}whitespace"].num_bytes == 2 + 3
    assert "fed.  \\n" in removed.reasons[f"{CHANGED}whitespace"].examples[0][1]


def test_no_example_shows_what_was_masked():
    masks = {"mask_addresses": True, "mask_secrets": True, "whitespace": True}
    made = cleaner(masks, {"words": (99, 100)})
    _, removed = apply(made, PROSE + "token = 'abcdefgh12345678'\n")
    assert removed.documents == 1
    shown = str(removed.as_json())
    assert "<EMAIL>" in shown
    assert "ada@example.org" not in shown
    assert "abcdefgh12345678" not in shown


def test_a_document_is_counted_under_one_reason_and_twenty_are_shown():
    made = cleaner(filters={"gopher": True, "entropy": True})
    kept, removed = apply(made, *(f"{n} #" for n in range(30)))
    assert kept == [None] * 30
    (reason,) = removed.reasons
    assert (reason, removed.documents) == ("words < 50", 30)
    assert len(removed.reasons[reason].examples) == 20


def test_lines_are_cut_before_a_page_is_judged_by_its_sentences():
    page = "Home\nThe first sentence is this one. The second one follows it here.\n"
    (kept, gone), removed = apply(cleaner(filters={"c4": True}), page * 2, page)
    assert kept.text.count("Home") == 0
    assert gone is None
    assert removed.reasons["sentences < 3"].documents == 1
    assert removed.reasons[f"{CHANGED}end_marks: lines"].examples[0] == ("x.txt:1", "Home\nHome")


def test_a_cleaner_may_be_sent_to_another_process(tmp_path):
    (tmp_path / "domains.txt").write_text("example.com\n")
    made = cleaner(
        {"unicode": "NFC", "characters": True},
        {"gopher": True, "c4": True, "scripts": ("latin",), "words": (1, 100),
         "blocked_domains": str(tmp_path / "domains.txt")},
    )  # fmt: skip
    again = pickle.loads(pickle.dumps(made))  # noqa: S301
    assert apply(again, PROSE * 3)[0] == apply(made, PROSE * 3)[0]
    assert apply(again, PROSE, url="https://www.example.com/")[1].reasons.keys() == {
        "blocked_domains"
    }


def test_files_that_filters_need_are_asked_for_at_once(tmp_path):
    for setting in ("blocked_domains", "allowed_domains", "classifier"):
        with pytest.raises(RecipeError, match=f"data.filters.{setting}: ") as refused:
            cleaner(filters={setting: str(tmp_path / "none")})
        assert refused.value.remedy


def test_sources_may_be_left_out_of_filters_and_cleaned_all_the_same():
    made = cleaner({"whitespace": True}, {"gopher": True}, filtered=False)
    assert apply(made, "x = 1  \n")[0] == [Document("x = 1\n", "x.txt:1")]
    assert SourceSection(path="x").filtered
