"""What lint found as one offline page with pictures, in the board's looks."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import longhaul
from longhaul.board.figures import Figure
from longhaul.board.page import (
    document,
    figure_section,
    key_figures,
    plotly_script,
    section,
    table,
    write,
)
from longhaul.core.units import count, sentence, short_bytes
from longhaul.data.lint.facts import SourceFacts
from longhaul.data.lint.findings import GIBBERISH_BITS, PREDICTABLE_BITS, Finding
from longhaul.data.lint.report import LintReport

_WARM = "#d55e00"
_SEVERAL = 0.25
"""Share from which on a finding is drawn as an alarm."""
_STRIP_WIDTH, _STRIP_HEIGHT = 512, 14
_MOST_RANKS = 400
_NOTHING = '<p class="empty">Nothing: no source shows more of any sign than clean text does.</p>'


def write_lint_page(path: Path, reports: Sequence[LintReport]) -> None:
    """Write it; UsageError if it cannot be."""
    write(path, render(reports, plotly_script()), "--html FILE")


def render(reports: Sequence[LintReport], plotly: str) -> str:
    """The whole page, a part for each recipe."""
    names = ", ".join(report.name for report in reports)
    found = [finding for report in reports for finding in report.findings]
    header = f"""<p class="kicker">Lint of text</p>
<h1>{escape(names)}</h1>
<p class="short">{escape(in_short(found))}</p>"""
    figures: list[Figure] = []
    sections = _key_figures(reports)
    for number, report in enumerate(reports):
        drawn = list(_figures(report, f"-{number}" if number else ""))
        figures += drawn
        title = "What to look at" + (f": {report.name}" if len(reports) > 1 else "")
        sections += section(f"findings-{number}", title, _findings(report.findings))
        sections += section(f"sources-{number}", "Sources", _table(report))
        sections += "".join(map(figure_section, drawn))
    footer = f"Written by longhaul {escape(longhaul.__version__)}."
    return document(f"{names}, lint", header, sections, footer, figures, plotly)


def in_short(found: Sequence[Finding]) -> str:
    """One sentence."""
    if not found:
        return "Nothing in this text would embarrass a run."
    where = sorted({finding.source for finding in found})
    return f"{count(len(found), 'thing')} to look at, in {', '.join(where)}."


def _key_figures(reports: Sequence[LintReport]) -> str:
    sources = [facts for report in reports for facts in report.sources]
    found = sum(len(report.findings) for report in reports)
    documents = sum(facts.num_documents for facts in sources)
    size = sum(facts.num_bytes for facts in sources)
    held_out = sum(report.num_held_out for report in reports)
    cards = [
        ("to look at", f"{found:,}", "findings"),
        ("sources", f"{len(sources):,}", "of text"),
        ("documents", f"{documents:,}", f"{held_out:,} of them held out"),
        ("text", short_bytes(size), "read once"),
    ]
    return key_figures(cards)


def _findings(found: Sequence[Finding]) -> str:
    if not found:
        return _NOTHING
    ordered = sorted(found, key=lambda finding: -min(finding.share, 1.0))
    return f"<ol class='entries findings'>{''.join(map(_finding, ordered))}</ol>"


def _finding(finding: Finding) -> str:
    tone = "alarm" if finding.share >= _SEVERAL else "warning"
    examples = "".join(f"<pre>{escape(example)}</pre>" for example in finding.examples)
    shown = f"<div class='samples'>{examples}</div>" if examples else ""
    return (
        f"<li class='{tone}'><time>{escape(finding.source)}</time>"
        f"<span class='step'>{escape(finding.kind)}</span><span class='what'>"
        f"<span class='head'>{escape(sentence(finding.sentence))}</span> "
        f"→ {escape(finding.remedy)}{_strip(finding)}{shown}</span></li>"
    )


def _strip(finding: Finding) -> str:
    """Where in the source, from its first document to its last, affected documents lie."""
    if len(finding.where) < 2:
        return ""
    most = max(finding.where)
    width = _STRIP_WIDTH / len(finding.where)
    bars = "".join(
        f'<rect x="{place * width:.1f}" width="{width:.1f}" height="{_STRIP_HEIGHT}" '
        f'opacity="{0.15 + 0.85 * number / most:.2f}"/>'
        for place, number in enumerate(finding.where)
        if number
    )
    label = "where in the source, from its first document to its last"
    return (
        f'<svg class="strip" viewBox="0 0 {_STRIP_WIDTH} {_STRIP_HEIGHT}" role="img" '
        f'preserveAspectRatio="none" aria-label="{label}"><title>{label}</title>{bars}</svg>'
    )


def _table(report: LintReport) -> str:
    titles = (
        "source", "documents", "text", "largest document", "exact copies", "shared lines",
        "templates", "bits a byte", "by the others", "tokens a byte",
    )  # fmt: skip
    per_byte = {use.source: use.tokens_per_byte for use in report.tokens}
    rows = ""
    for facts in report.sources:
        predicted, tokens = facts.predicted, per_byte.get(facts.name)
        others = predicted.others if predicted else ()
        words = (
            facts.name, f"{facts.num_documents:,}", short_bytes(facts.num_bytes),
            f"{facts.largest[0] / max(1, facts.num_bytes):.1%}", f"{facts.copies:.1%}",
            f"{facts.shared_bytes:.1%}",
            f"{len(facts.templated) / len(facts.pieces):.1%}" if predicted else "–",
            f"{predicted.mean:.2f}" if predicted else "–",
            f"{np.mean(others):.2f}" if others else "–",
            f"{tokens:.3f}" if tokens else "–",
        )  # fmt: skip
        rows += f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in words)}</tr>"
    return table("sources", titles, rows)


def _figures(report: LintReport, suffix: str) -> Iterator[Figure]:
    if not report.sources:
        return
    yield _signs(report.sources, suffix)
    if any(facts.predicted for facts in report.sources):
        yield _predictability(report.sources, suffix)
    yield _lengths(report.sources, suffix)
    if report.tokens:
        yield _ranks(report, suffix)


def _signs(sources: Sequence[SourceFacts], suffix: str) -> Figure:
    kinds = [sign.kind for sign in sources[0].signs]
    rows = [[facts.signs[n] for facts in sources] for n in range(len(kinds))]
    trace = {
        "type": "heatmap",
        "x": [facts.name for facts in sources],
        "y": kinds,
        # A source that shows twice what is a finding is as red as it gets.
        "z": [[min(2.0, sign.share / sign.check.floor) for sign in row] for row in rows],
        "text": [[f"{sign.share:.1%}" if sign.documents else "" for sign in row] for row in rows],
        "texttemplate": "%{text}", "zmin": 0, "zmax": 2, "showscale": False, "xgap": 3, "ygap": 3,
        "colorscale": [[0, "rgba(128,128,128,0.08)"], [0.499, "rgba(213,94,0,0.22)"],
                       [0.5, "rgba(213,94,0,0.6)"], [1, _WARM]],
        "hovertemplate": "%{x}: %{y} in %{text} of documents<extra></extra>",
        "meta": {"ink": "ink"},
    }  # fmt: skip
    return Figure(
        f"signs{suffix}", "Signs by source",
        "Share of documents in which a sign is dense, of those that could show it. Saturated where "
        "it is a finding.",
        [trace],
        {"yaxis": {"autorange": "reversed", "showgrid": False},
         "xaxis": {"side": "top", "showgrid": False}, "margin": {"l": 58, "t": 12, "b": 8}},
        60 + 30 * len(kinds), along_steps=False,
    )  # fmt: skip


def _predictability(sources: Sequence[SourceFacts], suffix: str) -> Figure:
    traces: list[dict[str, Any]] = []
    shown = [facts for facts in sources if facts.predicted]
    for place, (name, which) in enumerate(
        (("by a model of its other half", "own"), ("by a model of the other sources", "others"))
    ):
        values = [(facts.name, getattr(facts.predicted, which)) for facts in shown]
        x = [round(bits, 3) for _, several in values for bits in several]
        y = [source for source, several in values for _ in several]
        if x:
            traces.append({
                "type": "box", "orientation": "h", "x": x, "y": y, "name": name,
                "boxpoints": "outliers", "meta": {"place": place}, "marker": {"size": 3},
                "hovertemplate": "%{y}: %{x:.2f} bits a byte<extra></extra>",
            })  # fmt: skip
    line = {"width": 1, "dash": "dot", "color": _WARM}
    shapes = [
        {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        for at in (PREDICTABLE_BITS, GIBBERISH_BITS)
    ]
    return Figure(
        f"predictability{suffix}", "How well a small model predicts it",
        "Bits a byte of pieces of 4,096 characters, by n-gram models of six orders. A box is half "
        "of the pieces. Left of the first dotted line lies what only copies and templates reach, "
        "right of the second what random letters need.",
        traces,
        {"boxmode": "group", "shapes": shapes, "showlegend": True,
         "yaxis": {"autorange": "reversed"}, "xaxis": {"title": {"text": "bits a byte"}}},
        130 + 70 * len(shown), along_steps=False,
    )  # fmt: skip


def _lengths(sources: Sequence[SourceFacts], suffix: str) -> Figure:
    traces = [
        {
            "x": [2 ** (power - 0.5) for power in facts.lengths],
            "y": [100 * number / facts.num_documents for number in facts.lengths.values()],
            "mode": "lines+markers", "name": facts.name, "meta": {"place": place},
            "hovertemplate": "%{y:.1f} % of " + facts.name + "<br>about %{x:.3~s}B<extra></extra>",
        }
        for place, facts in enumerate(sources) if facts.num_documents
    ]  # fmt: skip
    return Figure(
        f"lengths{suffix}", "How long documents are",
        "Share of a source's documents by size, in doublings. A hump at the left is documents with "
        "next to nothing in them.",
        traces,
        {"showlegend": True, "xaxis": {"type": "log", "dtick": 1, "title": {"text": "bytes"}},
         "yaxis": {"title": {"text": "% of documents"}, "rangemode": "tozero"}},
        300, along_steps=False,
    )  # fmt: skip


def _ranks(report: LintReport, suffix: str) -> Figure:
    traces = []
    for place, use in enumerate(report.tokens):
        ordered = np.sort(use.counts)[::-1]
        used = ordered[ordered > 0]
        ranks = np.unique(np.geomspace(1, max(1, len(used)), _MOST_RANKS).astype(int))
        share = len(used) / max(1, len(ordered))
        traces.append({
            "x": ranks.tolist(), "y": used[ranks - 1].tolist() if len(used) else [],
            "mode": "lines", "name": f"{use.source}: {share:.1%} of the vocabulary used",
            "meta": {"place": place},
            "hovertemplate": "token of rank %{x:,}: %{y:,} times<extra></extra>",
        })  # fmt: skip
    return Figure(
        f"ranks{suffix}", "How often tokens are used",
        "Tokens of the training text by rank; where a line falls off before the others, its source "
        "uses less of the vocabulary.",
        traces,
        {"showlegend": True, "xaxis": {"type": "log", "dtick": 1, "title": {"text": "rank"}},
         "yaxis": {"type": "log", "dtick": 1, "title": {"text": "times"}}},
        300, along_steps=False,
    )  # fmt: skip
