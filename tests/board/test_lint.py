import json
import re
from dataclasses import replace

import numpy as np
import pytest

from longhaul.board.lint import in_short, render
from longhaul.data.documents import Document
from longhaul.data.lint.facts import facts_of
from longhaul.data.lint.findings import Finding, findings
from longhaul.data.lint.report import LintReport
from longhaul.data.lint.summary import SourceSummary
from longhaul.data.lint.tokens import TokenUse


@pytest.fixture(scope="module")
def report():
    """Two sources, one of them with text that was escaped once too often."""
    clean, leaked = SourceSummary("books"), SourceSummary("<web>")
    for number in range(60):
        text = f"Chapter {number}.\n" + f"It was a bright cold day, the {number}th.\n" * number
        clean.see(Document(text, f"books:{number}"))
        text = text.replace("\n", "\\n") + "</script><b>" if number > 40 else text
        leaked.see(Document(text, f"web:{number}"))
    facts = facts_of([clean, leaked])
    uses = (TokenUse("books", np.array([5, 0, 100]), 0.3), TokenUse("<web>", np.zeros(3, int), 0.4))
    found = tuple(findings(facts))
    return LintReport("mine", tuple(facts), {"books": "", "<web>": ""}, (), found, uses, 7)


def figures_of(page):
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return {figure["name"]: figure for figure in json.loads(data.group(1))["figures"]}


def test_the_page_tells_each_finding_with_source_example_and_place(report):
    page = render([report], "/* Plotly */")
    assert "escaped line ends" in page
    assert "&lt;web&gt;" in page
    assert "<web>" not in page, "text is escaped"
    assert "</script><b>" not in page
    assert 'class="strip"' in page
    assert "decode it once more" in page
    assert "things to look at, in &lt;web&gt;" in page or "thing to look at" in page


def test_pictures_show_every_source(report):
    figures = figures_of(render([report], ""))
    heat = figures["signs"]["traces"][0]
    assert heat["x"] == ["books", "<web>"]
    row = heat["z"][heat["y"].index("escaped line ends")]
    assert row[0] == 0
    assert row[1] >= 1, "a finding is saturated"
    assert {trace["name"] for trace in figures["lengths"]["traces"]} == {"books", "<web>"}
    assert figures["ranks"]["traces"][0]["y"] == [100, 5], "by rank; what is never used is left out"


def test_without_findings_or_sources_there_is_still_a_page(report):
    assert in_short([]) == "Nothing in this text would embarrass a run."
    empty = replace(report, sources=(), findings=(), tokens=(), skipped={})
    assert "Nothing: no source shows more" in render([empty], "")


def test_several_recipes_are_told_apart(report):
    page = render([report, replace(report, name="other")], "")
    assert "What to look at: other" in page
    assert {"signs", "signs-1"} <= figures_of(page).keys()


def test_one_thing_is_one_thing():
    finding = Finding("gibberish", "web", 0.5, "half of it is", "leave it out")
    assert in_short([finding]) == "1 thing to look at, in web."
