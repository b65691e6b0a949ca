"""An offline page of the board's looks: its shell, its sections and charts. Nothing is fetched, and
what is not marked as HTML is escaped here.
"""

import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from longhaul.board.curves import ModelGauges
from longhaul.board.figures import Figure
from longhaul.core.errors import LonghaulError, UsageError
from longhaul.core.files import write_bytes

_HERE = Path(__file__).parent
# The browser itself refuses whatever would leave the page.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_NO_GAUGES = ModelGauges()


def document(
    title: str,
    header: str,
    sections: str,
    footer: str,
    figures: Sequence[Figure],
    plotly: str,
    gauges: ModelGauges = _NO_GAUGES,
) -> str:
    """The whole page; all but the title is HTML, and `plotly` is Plotly's own script."""
    drawn = [vars(figure) for figure in figures if figure.traces]
    data = _embedded({"figures": drawn, "gauges": gauges.as_json()})
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)} · longhaul</title>
<style>{_own("page.css")}</style>
</head>
<body>
<header>
{header}
</header>
<main>
{sections}
</main>
<footer>{footer}</footer>
<noscript><p class="empty">The charts need JavaScript; the words above do not.</p></noscript>
<script type="application/json" id="data">{data}</script>
<script>{plotly}</script>
<script>{_own("page.js")}</script>
</body>
</html>
"""


def section(name: str, title: str, body: str) -> str:
    """A part of the page; `body` is HTML."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{body}\n</section>'


def figure_section(figure: Figure) -> str:
    """A part with a chart, or with the word that there is nothing to draw yet."""
    if not figure.traces:
        body = '<p class="empty">No step has been made yet.</p>'
        return section(figure.name, figure.title, body)
    controls = ""
    if figure.can_be_log:
        controls = (
            f'<p class="controls"><label><input type="checkbox" data-log="{figure.name}"> '
            "logarithmic</label></p>"
        )
    note = f'<p class="note">{escape(figure.note)}</p>{controls}'
    drawn = chart(figure.name, figure.height, figure.title)
    return section(figure.name, figure.title, note + drawn)


def chart(name: str, height: int, label: str) -> str:
    """The place of a chart, in pixels as high as told."""
    return (
        f'<div class="chart" id="chart-{name}" style="height:{height}px" '
        f'role="img" aria-label="{escape(label)}"></div>'
    )


def key_figures(cards: Iterable[tuple[str, str, str]]) -> str:
    """What a passer-by reads: title, figure and unit of each."""
    items = "".join(
        f"<div><dt>{escape(title)}</dt><dd>{escape(value)}</dd>"
        f"<dd class='unit'>{escape(unit)}</dd></div>"
        for title, value, unit in cards
    )
    return f'<dl id="key-figures">{items}</dl>'


def table(name: str, titles: Iterable[str], rows: str) -> str:
    """A table that may be wider than the page; `rows` are HTML."""
    head = "".join(f"<th>{title}</th>" for title in titles)
    return (
        f'<div class="wide"><table class="{name}"><thead><tr>{head}</tr></thead>'
        f"{rows}</table></div>"
    )


def write(path: Path, page: str, what: str) -> None:
    """Write a page; UsageError if it cannot be, which asks for another `--out`, such as `FILE`."""
    try:
        write_bytes(path, page.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror or error}", f"give another --out {what}"
        ) from error


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that no text in it can break out of."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _own(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def plotly_path() -> Path:
    """Plotly's own script in the installed package; LonghaulError if it is not there."""
    found = importlib.util.find_spec("plotly")
    for folder in found.submodule_search_locations or () if found else ():
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return script
    raise LonghaulError("the package plotly is not installed", "pip install plotly")


def plotly_script() -> str:
    """The same as text."""
    return plotly_path().read_text(encoding="utf-8")
