"""`report.html`, put together and written: every text is escaped, nothing is fetched."""

import importlib.util
import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import longhaul
from longhaul.board.chronicle import chronicle, in_short
from longhaul.board.facts import RunFacts, read_facts
from longhaul.board.figures import (
    Figure,
    as_json,
    gauge_data,
    loss_figure,
    progress_figure,
    step_figures,
)
from longhaul.board.tables import (
    background,
    chronicle_list,
    incident_table,
    key_figures,
    segment_table,
    time_bars,
)
from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError, UsageError
from longhaul.core.files import write_bytes
from longhaul.core.units import moment
from longhaul.logbook.folder import RunFolder

_HERE = Path(__file__).parent
# The browser itself refuses whatever would leave the page.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def render(facts: RunFacts, plotly_script: str) -> str:
    """The whole page."""
    loss, progress = loss_figure(facts), progress_figure(facts)
    others = step_figures(facts)
    drawn = [figure for figure in (loss, progress, *others) if figure.traces]
    data: dict[str, Any] = {
        "figures": [as_json(figure) for figure in drawn],
        "gauges": gauge_data(facts),
    }
    name, lines = escape(facts.name), facts.damaged
    damaged = f" {lines:,} lines of its journal could not be read." if lines else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{name} · longhaul</title>
<style>{_own("page.css")}</style>
</head>
<body>
<header>
<p class="kicker">Logbook of a training run</p>
<h1>{name} <span class="state {escape(facts.state)}">{escape(facts.state)}</span></h1>
<p class="short">{escape(in_short(facts))}</p>
</header>
<main>
{key_figures(facts)}
{_section("chronicle", "What happened", chronicle_list(chronicle(facts), facts.began))}
{_figure_section(loss)}
{_section("incidents", "Incidents", incident_table(facts))}
{_section("segments", "Segments", segment_table(facts))}
{_figure_section(progress)}
{_gauge_section(data["gauges"])}
{"".join(_figure_section(figure) for figure in others)}
{_section("time", "Where the time went", time_bars(facts))}
{_section("background", "Settings, software, machine", background(facts))}
</main>
<footer>Written {moment(facts.written)} UTC by longhaul {escape(longhaul.__version__)}.
Times are UTC.{damaged}</footer>
<noscript><p class="empty">The charts need JavaScript; the words above do not.</p></noscript>
<script type="application/json" id="data">{_embedded(data)}</script>
<script>{plotly_script}</script>
<script>{_own("page.js")}</script>
</body>
</html>
"""


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{body}\n</section>'


def _figure_section(figure: Figure) -> str:
    if not figure.traces:
        body = '<p class="empty">No step has been made yet.</p>'
        return _section(figure.name, figure.title, body)
    controls = ""
    if figure.can_be_log:
        controls = (
            f'<p class="controls"><label><input type="checkbox" data-log="{figure.name}"> '
            "logarithmic</label></p>"
        )
    note = f'<p class="note">{escape(figure.note)}</p>{controls}'
    chart = _chart(figure.name, figure.height, figure.title)
    return _section(figure.name, figure.title, note + chart)


def _chart(name: str, height: int, label: str) -> str:
    return (
        f'<div class="chart" id="chart-{name}" style="height:{height}px" '
        f'role="img" aria-label="{escape(label)}"></div>'
    )


def _gauge_section(data: Mapping[str, Any]) -> str:
    parts = []
    if data["layers"]:
        parts.append(
            '<p class="note">Each gauge by layer: the largest value of a maximum, the mean of a '
            "root mean square, over the steps of a column. Layer 0 is next to the tokens.</p>"
            f'<p class="controls"><label>gauge {_menu("gauge", data["layers"])}</label> '
            '<label class="only-lost"><input type="checkbox" id="as-happened" checked> '
            "in order of time, with what was rolled back (bars on top)</label></p>"
            + _chart("heat", 360, "gauge by layer and step")
        )
    if data["totals"]:
        parts.append(
            '<p class="note">The model as a whole, by role of weights or source of data.</p>'
            f'<p class="controls"><label>gauge {_menu("total", data["totals"])}</label></p>'
            + _chart("total", 300, "gauge of the model by step")
        )
    if not parts:
        parts.append('<p class="empty">This run has measured no gauges.</p>')
    return _section("gauges", "Gauges", "\n".join(parts))


def _menu(name: str, options: Iterable[str]) -> str:
    items = "".join(
        f'<option value="{escape(option)}">{escape(option.replace("_", " "))}</option>'
        for option in options
    )
    return f'<select id="{name}">{items}</select>'


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that no text in it can break out of."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _own(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def write_report(folder: RunFolder, clock: Clock, out: Path | None = None) -> Path:
    """Write a run's page to `report.html` in its folder, or `out`; UsageError if it cannot be."""
    path = folder.path / "report.html" if out is None else out
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "the folder it should lie in does not exist"
        raise UsageError(f"{path}: {what}", "give a file with --out FILE")
    page = render(read_facts(folder, clock), plotly_script())
    try:
        write_bytes(path, page.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror or error}", "give another --out FILE"
        ) from error
    return path


def plotly_script() -> str:
    """Plotly's own script, from the installed package; LonghaulError if it is not there."""
    found = importlib.util.find_spec("plotly")
    for folder in found.submodule_search_locations or () if found else ():
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return script.read_text(encoding="utf-8")
    raise LonghaulError("the package plotly is not installed", "pip install plotly")
