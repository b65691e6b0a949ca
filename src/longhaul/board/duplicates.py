"""What deduplication found as one offline page: by source, by size, the largest side by side."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

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
from longhaul.core.units import count

PAGE = "duplicates.html"
_MOST_SIZES = 40
_EXCERPT_STYLE = "white-space:pre-wrap;max-height:18em;overflow:auto"
_NONE = '<p class="empty">No document is like another.</p>'


def write_page(path: Path, recipe: str, report: Mapping[str, Any]) -> None:
    """Write the page of what `Findings.report` gives; UsageError if it cannot be."""
    write(path, render(recipe, report, plotly_script()), "FILE")


def render(recipe: str, report: Mapping[str, Any], plotly: str) -> str:
    """The whole page."""
    figures = [_sources(report["by_source"]), _sizes(report["sizes"])]
    dropped = report["exact"] + report["near"]
    share = dropped / max(1, report["documents"])
    header = f"""<p class="kicker">Duplicates</p>
<h1>{escape(recipe)}</h1>
<p class="short">{count(dropped, "document")} of {report["documents"]:,} dropped ({share:.2%}), in
{count(report["clusters"], "cluster")} of which one document each stays.</p>"""
    cards = [
        ("documents", f"{report['documents']:,}", "read"),
        ("exact", f"{report['exact']:,}", "copies dropped"),
        ("near", f"{report['near']:,}", "near-duplicates dropped"),
        ("clusters", f"{report['clusters']:,}", "one document of each stays"),
    ]
    # A chart without a bar would speak of steps.
    charts = "".join(map(figure_section, figures)) if dropped else ""
    sections = f"""{key_figures(cards)}
{charts}
{section("sources", "By source", _matrix(report["by_source"]))}
{section("largest", "The largest clusters", _largest(report["largest"]))}"""
    footer = f"Written by longhaul {escape(longhaul.__version__)}."
    return document(f"{recipe}, duplicates", header, sections, footer, figures, plotly)


def _sources(rows: Sequence[Mapping[str, Any]]) -> Figure:
    labels = [f"{escape(row['dropped'])} → {escape(row['kept'])}" for row in rows][::-1]
    traces = [
        {
            "type": "bar", "orientation": "h", "y": labels, "name": name, "meta": {"place": place},
            "x": [row[name] for row in rows][::-1],
            "hovertemplate": f"%{{y}}: %{{x:,}} {name}<extra></extra>",
        }
        for place, name in enumerate(("exact", "near")) if rows
    ]  # fmt: skip
    layout = {"barmode": "stack", "showlegend": True,
              "xaxis": {"title": {"text": "documents dropped"}}}  # fmt: skip
    note = (
        "Documents dropped, by their source and that of the one which stays for them. Exact ones "
        "have the same bytes; near ones are linked by pairs beyond the threshold."
    )
    height = 130 + 28 * max(1, len(rows))
    return Figure("by-source", "Who repeats whom", note, traces, layout, height, along_steps=False)


def _sizes(sizes: Mapping[str, int]) -> Figure:
    ordered = sorted((int(size), times) for size, times in sizes.items())
    shown = ordered[: _MOST_SIZES - 1]
    labels, values = [str(size) for size, _ in shown], [times for _, times in shown]
    if rest := ordered[_MOST_SIZES - 1 :]:
        labels.append(f"{rest[0][0]:,} and more")
        values.append(sum(times for _, times in rest))
    trace = {
        "type": "bar", "x": labels, "y": values, "meta": {"place": 0},
        "hovertemplate": "%{y:,} clusters of %{x} documents<extra></extra>",
    }  # fmt: skip
    layout = {"xaxis": {"type": "category", "title": {"text": "documents in a cluster"}},
              "yaxis": {"title": {"text": "clusters"}}}  # fmt: skip
    note = "Connected documents, the one that stays counted."
    return Figure("sizes", "Sizes of clusters", note, [trace] if shown else [], layout,
                  along_steps=False, can_be_log=True)  # fmt: skip


def _matrix(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows: the source of who is dropped; columns: of who stays."""
    if not rows:
        return _NONE
    kept = sorted({row["kept"] for row in rows})
    cells = {(row["dropped"], row["kept"]): row for row in rows}
    lines = []
    for dropped in sorted({row["dropped"] for row in rows}):
        words = [dropped]
        for column in kept:
            row = cells.get((dropped, column))
            words.append(f"{row['exact']:,} exact, {row['near']:,} near" if row else "–")
        lines.append(f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in words)}</tr>")
    titles = ["dropped from", *(f"like one of {escape(column)}" for column in kept)]
    return table("sources", titles, "".join(lines))


def _largest(clusters: Sequence[Mapping[str, Any]]) -> str:
    """Each with its first documents beside each other, who stays on the left."""
    if not clusters:
        return _NONE
    return "".join(
        f"<h3>{count(cluster['size'], 'document')}</h3>{_side_by_side(cluster['members'])}"
        for cluster in clusters
    )


def _side_by_side(members: Sequence[Mapping[str, Any]]) -> str:
    titles = [
        f"{escape(member['name'])}<br>{escape(member['source'])}, "
        f"{member['characters']:,} characters<br>{_standing(member, not place)}"
        for place, member in enumerate(members)
    ]
    texts = "".join(
        f"<td style='vertical-align:top'><pre style='{_EXCERPT_STYLE}'>"
        f"{escape(member['excerpt'])}</pre></td>"
        for member in members
    )
    return table("side-by-side", titles, f"<tr>{texts}</tr>")


def _standing(member: Mapping[str, Any], stays: bool) -> str:
    return "stays" if stays else f"dropped, Jaccard {member['similarity']:.3f}"
