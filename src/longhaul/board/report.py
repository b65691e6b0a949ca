"""`report.html`, put together and written: every text is escaped, nothing is fetched."""

from html import escape
from pathlib import Path

import longhaul
from longhaul.board.chronicle import chronicle, in_short
from longhaul.board.curves import ModelGauges
from longhaul.board.facts import RunFacts, read_facts
from longhaul.board.figures import loss_figure, progress_figure, step_figures
from longhaul.board.node_table import node_section
from longhaul.board.page import chart, document, figure_section, plotly_script, section, write
from longhaul.board.samples import sample_list
from longhaul.board.tables import (
    attempt_table,
    background,
    chronicle_list,
    incident_table,
    key_figures,
    segment_table,
    time_bars,
)
from longhaul.core.clocks import Clock
from longhaul.core.errors import UsageError
from longhaul.core.units import moment
from longhaul.logbook.folder import RunFolder


def render(facts: RunFacts, plotly: str) -> str:
    """The whole page."""
    loss, progress = loss_figure(facts), progress_figure(facts)
    others = step_figures(facts)
    name, lines = escape(facts.name), facts.damaged
    damaged = f" {lines:,} lines of its journal could not be read." if lines else ""
    header = f"""<p class="kicker">Logbook of a training run</p>
<h1>{name} <span class="state {escape(facts.state)}">{escape(facts.state)}</span></h1>
<p class="short">{escape(in_short(facts))}</p>"""
    words = sections_in_words(facts)
    sections = f"""{key_figures(facts)}
{words["chronicle"]}
{figure_section(loss)}
{words["incidents"]}
{words["segments"]}
{figure_section(progress)}
{gauge_section(facts.model_gauges)}
{"".join(figure_section(figure) for figure in others)}
{words["samples"]}
{words["attempts"]}
{words["nodes"]}
{words["time"]}
{words["background"]}"""
    footer = f"""Written {moment(facts.written)} UTC by longhaul {escape(longhaul.__version__)}.
Times are UTC.{damaged}"""
    figures = [loss, progress, *others]
    return document(facts.name, header, sections, footer, figures, plotly, facts.model_gauges)


def sections_in_words(facts: RunFacts) -> dict[str, str]:
    """Name → HTML of the parts of a page without a chart."""
    told = chronicle_list(chronicle(facts), facts.began)
    samples = sample_list(facts)
    return {
        "chronicle": section("chronicle", "What happened", told),
        "incidents": section("incidents", "Incidents", incident_table(facts)),
        "segments": section("segments", "Segments", segment_table(facts)),
        "samples": section("samples", "Samples", samples) if samples else "",
        "attempts": section("attempts", "Attempts", attempt_table(facts)),
        "nodes": node_section(facts.nodes, live=facts.state == "live"),
        "time": section("time", "Where the time went", time_bars(facts)),
        "background": section("background", "Settings, software, machine", background(facts)),
    }


def gauge_section(gauges: ModelGauges) -> str:
    """The heat map of the layers' gauges and the curves of the model's, with their menus."""
    parts = []
    if gauges.layers:
        parts.append(
            '<p class="note">Each gauge by layer: the largest value of a maximum, the mean of a '
            "root mean square, over the steps of a column. Layer 0 is next to the tokens.</p>"
            f'<p class="controls"><label>gauge {_menu("gauge", gauges)}</label> '
            '<label class="only-lost"><input type="checkbox" id="as-happened" checked> '
            "in order of time, with what was rolled back (bars on top)</label></p>"
            + chart("heat", 360, "gauge by layer and step")
            + _forecast("gauge", gauges)
        )
    if gauges.totals:
        parts.append(
            '<p class="note">The model as a whole, by role of weights or source of data.</p>'
            f'<p class="controls"><label>gauge {_menu("total", gauges)}</label></p>'
            + chart("total", 300, "gauge of the model by step")
            + _forecast("total", gauges)
        )
    if not parts:
        parts.append('<p class="empty">This run has measured no gauges.</p>')
    return section("gauges", "Gauges", "\n".join(parts))


def _menu(name: str, gauges: ModelGauges) -> str:
    """Those with a forecast say so, and it opens on the most pressing."""
    layered = name == "gauge"
    first = gauges.opens_on(layered=layered)
    items = "".join(
        f'<option value="{escape(gauge)}"{" selected" * (gauge == first)}>'
        f"{escape(gauges.words_of(gauge, layered=layered)[0])}</option>"
        for gauge in (gauges.layers if layered else gauges.totals)
    )
    return f'<select id="{name}">{items}</select>'


def _forecast(name: str, gauges: ModelGauges) -> str:
    """The line below a chart; the page's script changes it with the menu."""
    layered = name == "gauge"
    first = gauges.opens_on(layered=layered)
    words = escape(gauges.words_of(first, layered=layered)[1])
    tone = " warning" * bool(gauges.dangers_of(first, layered=layered))
    return f'<p class="forecast{tone}" id="forecast-{name}">{words}</p>'


def write_report(folder: RunFolder, clock: Clock, out: Path | None = None) -> Path:
    """Write a run's page to `report.html` in its folder, or `out`; UsageError if it cannot be."""
    path = folder.path / "report.html" if out is None else out
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "the folder it should lie in does not exist"
        raise UsageError(f"{path}: {what}", "give a file with --out FILE")
    write(path, render(read_facts(folder, clock), plotly_script()), "FILE")
    return path
