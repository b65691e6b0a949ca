"""The gauges as a table, made from the code that declares them.

Enters: the declared gauges. Leaves: a row a gauge, in Markdown. Never knows: how one is read.
"""

from longhaul.monitor.thermometers import declared

_READ_FROM = {
    "layer": "each layer",
    "model": "the model",
    "role": "each role of weights",
    "source": "each source of text",
}
_REDUCED = {
    "max": "largest",
    "min": "smallest",
    "mean": "mean",
    "rms": "root of mean square",
    "norm": "root of sum of squares",
}


def as_markdown() -> str:
    """The table for the documentation."""
    lines = [
        "| gauge | of | unit | what it is | over micro-batches and ranks |",
        "|---|---|---|---|---|",
    ]
    for gauge in declared():
        cells = (
            f"`{gauge.name}`",
            _READ_FROM[gauge.per],
            gauge.unit,
            gauge.meaning.replace("|", "\\|"),
            _REDUCED[gauge.reduction],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
