import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fakes import FakeClock
from longhaul.board.facts import read_facts
from longhaul.board.report import render
from longhaul.logbook.folder import create_run


class Reader(HTMLParser):
    """What a browser would find: ids, texts, scripts, and whatever would be fetched."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.scripts, self.fetched, self.open, self.text = set(), [], [], [], ""
        self.tags = set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given["id"]} if "id" in given else set()
        self.open.append(tag)
        self.tags.add(tag)
        self.fetched += [given[key] for key in ("src", "href", "action") if key in given]
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def facts(told):
    return read_facts(told, FakeClock())


def test_every_part_is_there(facts):
    found = Reader(render(facts, "/* plotly */"))
    parts = {
        "key-figures", "chronicle", "loss", "incidents", "segments", "progress", "gauges",
        "learning_rate", "gradient_norm", "throughput", "time", "background", "chart-heat",
        "chart-total", "chart-loss", "incident-1", "segment-1.03",
    }  # fmt: skip
    assert parts <= found.ids
    for words in ("12 layers", "torch 2.12.0 → 2.13.0", "goodput", "finished"):
        assert words in found.text


def test_what_people_typed_cannot_leave_its_place(facts):
    found = Reader(render(facts, "/* plotly */"))
    assert len(found.scripts) == 3
    assert "a tired note </script><script>alert(1)</script> & <b>bold</b>" in found.text
    nasty = replace(facts.incidents[0], sentence="</script><img src=x>", subject="<b>")
    row = facts.model_gauges.layers["residual_max"][0]
    sources = {"source_losses": {"</script><img src=x>": row}}
    gauges = replace(facts.model_gauges, totals=sources)
    strange = replace(facts, incidents=(nasty,), name="<i>run</i>", model_gauges=gauges)
    page = Reader(render(strange, ""))
    assert len(page.scripts) == 3
    assert page.fetched.count("x") == 0
    json.loads(page.scripts[0])


WORD = "<img src=x>"


def _said_by_an_incident(facts):
    decision = replace(facts.incidents[0].decision, reason=WORD)
    return replace(facts, incidents=(replace(facts.incidents[0], decision=decision),))


def _said_by_a_segment(facts):
    opening = replace(facts.branches[0].opening, reason=WORD)
    return replace(facts, branches=(replace(facts.branches[0], opening=opening),))


@pytest.mark.parametrize(
    "nasty",
    [
        pytest.param(_said_by_an_incident, id="incident's reason"),
        pytest.param(_said_by_a_segment, id="segment's reason"),
        pytest.param(lambda f: replace(f, settings={"summary": WORD}), id="setting's value"),
        pytest.param(lambda f: replace(f, name=WORD), id="run's name"),
    ],
)
def test_a_word_in_brackets_is_read_and_never_becomes_a_tag(facts, nasty):
    found = Reader(render(nasty(facts), ""))
    assert "img" not in found.tags
    assert WORD in found.text


def test_nothing_is_fetched_and_the_browser_is_told_so(facts):
    page = render(facts, "/* plotly */")
    found = Reader(page)
    assert all(address.startswith(("#", "data:")) for address in found.fetched)
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import|https?://", page)


def test_figures_hold_numbers_that_json_knows(facts):
    data = json.loads(Reader(render(facts, "")).scripts[0])
    assert [figure["name"] for figure in data["figures"]][:2] == ["loss", "progress"]
    loss = data["figures"][0]["traces"]
    assert any(trace["meta"].get("kept") is False for trace in loss)
    marks = [number for trace in loss if "tone" in trace["meta"] for number in trace["customdata"]]
    assert sorted(marks) == [1, 2, 3, 4, 5]
    assert None in data["gauges"]["totals"]["logsumexp_max"][""]  # it was not a number


def test_an_empty_run_and_one_without_gauges_are_pages_too(tmp_path, new_story):
    empty = read_facts(create_run(tmp_path / "empty", FakeClock()), FakeClock())
    assert "Nothing has been trained yet." in Reader(render(empty, "")).text
    story = new_story()
    story.every = 10**9
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 1)
    found = Reader(render(read_facts(story.close(), FakeClock()), ""))
    assert "measured no gauges" in found.text
    assert "chart-heat" not in found.ids


def test_a_run_whose_loss_was_never_finite(new_story):
    story = new_story()
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 30, spike=float("inf"))
    story.event("evaluation", 30, data={"loss": float("nan")})
    page = Reader(render(read_facts(story.close(), FakeClock()), ""))
    json.loads(page.scripts[0])
    assert "not a number" in page.text
