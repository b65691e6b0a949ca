"""What `longhaul qualify` found as one offline page: findings, nodes, heat maps of pairs, checks.
Nothing of it needs a script.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import longhaul
from longhaul.board.page import document, key_figures, section, table, write
from longhaul.cluster.qualify.comparing import figure
from longhaul.cluster.qualify.outcome import NodeOutcome, Outcome
from longhaul.cluster.qualify.records import Check
from longhaul.core.units import moment, sentence, short_seconds

_TONES = {"fail": "alarm", "warn": "warning", "pass": "good", "not applicable": ""}
_CELL, _LABEL = 46, 120
"""Pixels of a pair's cell, and of the names beside the map."""
_SMALLEST_CELL, _WIDEST = 6, 960
_NUMBERED = 34
"""A cell of fewer pixels holds no number."""
_SPAN = 2.0
"""Times the median at which a cell has the colour of alarm: half as fast, or twice as late."""


def write_page(path: Path, outcome: Outcome) -> None:
    """Write it; UsageError if it cannot be."""
    write(path, render(outcome), "--page FILE")


def render(outcome: Outcome) -> str:
    """The whole page."""
    kind = "quick battery" if outcome.quick else "battery"
    header = f"""<p class="kicker">Qualification, {kind}, {escape(moment(outcome.time))} UTC</p>
<h1>{"Fit" if outcome.passed else "Not fit"}</h1>
<p class="short">{escape(sentence(outcome.sentence()))}</p>"""
    parts = [
        key_figures(_cards(outcome)),
        section("findings", "What to look at", _findings(outcome.findings)),
        section("nodes", "Nodes", _nodes(outcome.nodes)),
        _maps(outcome),
        section("checks", "All checks", _checks(outcome.checks)),
    ]
    footer = f"Written by longhaul {escape(longhaul.__version__)}."
    return document("Qualification", header, "\n".join(filter(None, parts)), footer, (), "")


def _cards(outcome: Outcome) -> Iterable[tuple[str, str, str]]:
    fit = sum(node.fit for node in outcome.nodes)
    yield "nodes", f"{fit} of {len(outcome.nodes)}", "fit"
    yield "checks", f"{sum(c.verdict == 'pass' for c in outcome.checks):,}", "passed"
    if (usable := outcome.usable) is not None:
        number, _, unit = figure(usable, "FLOP/s").partition(" ")
        yield "usable", number, f"{unit}, the slowest fit device times all"
    if outcome.rates:
        number, _, unit = figure(min(outcome.rates.values()), "B/s").partition(" ")
        yield "slowest link", number, unit
    if outcome.interval_s is not None and outcome.save_s is not None:
        yield "save every", short_seconds(outcome.interval_s), f"a save: {outcome.save_s:.3g} s"


def _findings(found: Sequence[Check]) -> str:
    if not found:
        return '<p class="empty">Nothing: no check failed or warned.</p>'
    items = "".join(
        f"<li class='{_TONES[check.verdict]}'><time>{escape(check.node or 'between nodes')}</time>"
        f"<span class='step'>{escape(check.name)}</span><span class='what'>"
        f"<span class='head'>{escape(sentence(check.reason))}</span> → {escape(check.remedy)}"
        f"<br><span class='quiet'>Expected: {escape(check.expected)}; "
        f"{escape(check.source)}</span></span></li>"
        for check in found
    )
    return f"<ol class='entries findings'>{items}</ol>"


def _nodes(nodes: Sequence[NodeOutcome]) -> str:
    rows = ""
    for node in nodes:
        said = "fit" if node.fit else "not fit"
        speed = figure(node.slowest, "FLOP/s") if node.slowest is not None else "–"
        cells = (node.host, said, node.hardware, f"{node.devices}", speed, sentence(node.reason))
        tone = "" if node.fit else " class='alarm'"
        rows += f"<tr{tone}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    titles = ("node", "verdict", "device", "devices", "slowest, sustained", "why")
    return table("incidents", titles, f"<tbody>{rows}</tbody>")


def _maps(outcome: Outcome) -> str:
    return "".join(
        section(name, title, f'<p class="note">{escape(note)}</p>{heat_map(found, unit, slow)}')
        for name, title, note, found, unit, slow in (
            (
                "rates", "Bandwidth of pairs",
                "Row sends to column; the best of three rounds. Red: half the median, or less.",
                outcome.rates, "B/s", False,
            ),
            (
                "latencies", "Latency of pairs",
                "Row to column, half a round trip of 8 bytes. Red: twice the median, or more.",
                outcome.latencies, "s", True,
            ),
        )
        if found
    )  # fmt: skip


def heat_map(found: Mapping[tuple[str, str], float], unit: str, late: bool) -> str:
    """Pairs as squares of an SVG; `late`: a larger figure is worse."""
    names = list(dict.fromkeys([a for a, _ in found] + [b for _, b in found]))
    cell = max(_SMALLEST_CELL, min(_CELL, (_WIDEST - _LABEL) // max(1, len(names))))
    middle = statistics.median(found.values())
    place = {name: _LABEL + number * cell for number, name in enumerate(names)}
    shapes = []
    for (begin, end), value in found.items():
        x, y = place[end], place[begin] - _LABEL + cell
        worse = value / middle if late else middle / value if value else _SPAN
        share = round(100 * min(1.0, max(0.0, (worse - 1) / (_SPAN - 1))))
        colour = f"color-mix(in srgb, var(--alarm) {share}%, var(--ink-2))"
        said = f"{begin} → {end}: {figure(value, unit)}"
        shapes.append(
            f'<rect x="{x}" y="{y}" width="{cell - 1}" height="{cell - 1}" style="fill:{colour}">'
            f"<title>{escape(said)}</title></rect>"
        )
        if cell >= _NUMBERED:
            shapes.append(
                f'<text x="{x + cell / 2}" y="{y + cell / 2 + 4}" text-anchor="middle" '
                f'font-size="11" style="fill:var(--sheet);pointer-events:none">'
                f"{escape(_short(value, late))}</text>"
            )
    if cell >= 12:
        for name in names:
            middle_of = place[name] + cell / 2
            text = escape(name[:16])
            shapes.append(
                f'<text x="{_LABEL - 8}" y="{place[name] - _LABEL + cell * 1.5 + 4}" '
                f'text-anchor="end" font-size="12" style="fill:var(--ink)">{text}</text>'
                f'<text x="{middle_of}" y="{cell - 6}" text-anchor="middle" font-size="12" '
                f'style="fill:var(--ink)">{escape(name[-max(1, cell // 7) :])}</text>'
            )
    width, height = _LABEL + cell * len(names), cell * (len(names) + 1)
    scale = f"in {'ms' if late else 'GB/s'}; median {figure(middle, unit)}"
    return (
        f'<div class="wide"><svg class="pairs" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="heat map of pairs">{"".join(shapes)}</svg></div>'
        f"<p class='quiet'>{escape(scale)}</p>"
    )


def _short(value: float, late: bool) -> str:
    return f"{value * (1e3 if late else 1e-9):.2g}"


def _checks(checks: Sequence[Check]) -> str:
    rows = "".join(
        f"<tr><td>{escape(check.verdict)}</td><td>{escape(check.group)}</td>"
        f"<td>{escape(check.name)}</td>"
        f"<td>{escape(' '.join(filter(None, (check.node, check.device))))}</td>"
        f"<td>{escape(figure(check.value, check.unit))}</td>"
        f"<td>{escape(check.expected or check.reason)}<p class='quiet'>{escape(check.source)}</p>"
        "</td></tr>"
        for check in checks
    )
    titles = ("verdict", "group", "check", "where", "measured", "expected")
    return table("checks-table", titles, f"<tbody>{rows}</tbody>")
