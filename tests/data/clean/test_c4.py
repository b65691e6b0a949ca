import pytest

from longhaul.config.corpus import FilterSection
from longhaul.data.clean.c4 import c4_rules_of

THREE = "The first sentence is here. The second one follows it! And is this the third?\n"


def apply(text, **settings):
    lines, pages = c4_rules_of(FilterSection.model_validate(settings))
    cut = {}
    if lines is not None:
        text, cut = lines.apply(text)
    return text, cut, pages.reason(text) if pages else None


@pytest.mark.parametrize(
    ("setting", "goes", "stays", "told"),
    [
        ("end_marks", "Home | About | Contact us", 'She said "so it is."', "end_marks: lines"),
        ("end_marks", "Read more about it here...", "Is it so?", "end_marks: lines"),
        ("line_words", "Only four words here.", "These are five words here.",
         "line_words: lines < 5"),
        ("boilerplate", "Please turn JavaScript on in your browser.", "Java is a scripted island.",
         "boilerplate: lines about JavaScript"),
        ("boilerplate", "This site Uses Cookies of all kinds.", "The baker uses flour.",
         "boilerplate: lines about policies"),
    ],
)  # fmt: skip
def test_lines_are_cut_by_each_rule(setting, goes, stays, told):
    text, cut, reason = apply(f"{stays}\n{goes}\n{stays}", **{setting: True})
    assert (text, cut, reason) == (f"{stays}\n{stays}", {told: [goes]}, None)


def test_marks_of_citations_are_cut_within_a_line():
    text, cut, _ = apply(
        "It is so.[1] It was[citation needed] so [12a] in [2020].", boilerplate=True
    )
    assert text == "It is so. It was so [12a] in [2020]."
    assert cut == {"boilerplate: citation marks": ["[1]", "[citation needed]"]}


@pytest.mark.parametrize(
    ("setting", "goes", "stays", "told"),
    [
        ("boilerplate", "Lorem ipsum dolor sit amet.", "Lorem, ipsum.", "boilerplate: lorem ipsum"),
        ("braces", "if (a) { b(); }", "if (a) b();", "braces"),
        ("sentences", "One here. And version 2.0 there!", THREE, "sentences < 3"),
        ("sentences", "没有。两句。", "一。二！三？", "sentences < 3"),
    ],
)
def test_pages_go_by_each_rule(setting, goes, stays, told):
    assert apply(goes, **{setting: True})[2] == told
    assert apply(stays, **{setting: True})[2] is None


def test_lines_are_cut_before_a_page_is_judged_and_leave_no_gaps():
    page = f"Menu\n\nNews\n\n{THREE}\nShare\n\n\n\nTweet\n\n{THREE}"
    text, cut, reason = apply(page, c4=True)
    assert text == f"{THREE}\n{THREE}"
    assert cut["end_marks: lines"] == ["Menu", "News", "Share", "Tweet"]
    assert reason is None
    assert apply("Menu\nNews\n", c4=True)[2] == "sentences < 3"


def test_a_switch_takes_a_rule_out_of_the_preset():
    text, cut, _ = apply(f"A line of five words or more\n{THREE}", c4=True, end_marks=False)
    assert not cut
    assert text.startswith("A line")
    assert apply("Three words here.", line_words=3)[0] == "Three words here."
    assert c4_rules_of(FilterSection()) == (None, None)
