"""A study of the data's value as one offline page with pictures, in the board's looks."""

from html import escape
from pathlib import Path

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
from longhaul.core.units import count, sentence, short_count
from longhaul.plan.ladder.fit import Interval
from longhaul.plan.value.analysis import OVERALL, SizeWorth, Value

PAGE = "value.html"


def write_page(recipe: str, value: Value, folder: Path) -> Path:
    """Write it beside the study's JSON; UsageError if it cannot be."""
    write(folder / PAGE, render(Path(recipe).stem, value, plotly_script()), "DIR")
    return folder / PAGE


def render(name: str, value: Value, plotly: str) -> str:
    """The whole page."""
    figures = [_overall(value), *(_by_set(size) for size in value.sizes)]
    short = " ".join(map(sentence, value.sentences()))
    header = f"""<p class="kicker">The value of data</p>
<h1>{escape(name)}</h1>
<p class="short">{escape(short)}</p>"""
    cards = [
        ("models", str(sum(len(s.worths) + 1 for s in value.sizes) * value.seeds),
         f"{count(value.seeds, 'seed')} each"),
        ("tokens", short_count(value.tokens), "a model"),
        ("sizes", " · ".join(size.name for size in value.sizes), "layers × width"),
        *(("ranking", f"{a.correlation:.2f}", f"Spearman, {a.smaller} to {a.larger}")
          for a in value.agreements if a.correlation == a.correlation),
    ]  # fmt: skip
    tables = "".join(
        section(f"table-{number}", f"At {size.name}", _table(size))
        for number, size in enumerate(value.sizes)
    )
    sections = f"{key_figures(cards)}\n{''.join(map(figure_section, figures))}\n{tables}"
    footer = f"Written by longhaul {escape(longhaul.__version__)}."
    return document(f"{name}, value of its data", header, sections, footer, figures, plotly)


def _overall(value: Value) -> Figure:
    order = [worth.variant.name for worth in reversed(value.sizes[-1].worths)]
    traces = []
    for place, size in enumerate(value.sizes):
        found = {worth.variant.name: worth.overall for worth in size.worths}
        shown = [found[name] for name in order]
        traces.append({
            "mode": "markers", "name": f"{size.name}, {short_count(size.parameters)} parameters",
            "meta": {"place": place}, "y": order, "x": [i.value for i in shown],
            "error_x": {"type": "data", "symmetric": False,
                        "array": [i.high - i.value for i in shown],
                        "arrayminus": [i.value - i.low for i in shown]},
            "marker": {"size": 9},
            "hovertemplate": "%{y}: %{x:+.4f} nats<extra></extra>",
        })  # fmt: skip
    note = (
        "Mean loss over all held-out sets, each counted alike, minus that of the whole recipe, by "
        f"seed; bars are 95 % of {count(value.seeds, 'seed')}. To the right of zero the model "
        "misses what was left out."
    )
    layout = {"showlegend": True, "xaxis": {"title": {"text": "nats"}, "zeroline": True},
              "yaxis": {"automargin": True}}  # fmt: skip
    return Figure("overall", "What each is worth", note, traces if order else [], layout,
                  160 + 44 * max(1, len(order)), along_steps=False)  # fmt: skip


def _by_set(size: SizeWorth) -> Figure:
    order = [worth.variant.name for worth in reversed(size.worths)]
    traces = [
        {
            "type": "bar", "orientation": "h", "name": name, "meta": {"place": place},
            "y": order, "x": [worth.by_set[name].value for worth in reversed(size.worths)],
            "hovertemplate": f"%{{y}} on {name}: %{{x:+.4f}} nats<extra></extra>",
        }
        for place, name in enumerate(n for n in size.whole if n != OVERALL)
    ]  # fmt: skip
    note = (
        "The same by held-out set: what a source left out costs on its own text, and what on the "
        "others'."
    )
    layout = {"barmode": "group", "showlegend": True, "xaxis": {"title": {"text": "nats"}},
              "yaxis": {"automargin": True}}  # fmt: skip
    height = 140 + (20 + 14 * len(traces)) * max(1, len(order))
    return Figure(f"sets-{size.name}", f"On which text, at {size.name}", note, traces, layout,
                  height, along_steps=False)  # fmt: skip


def _table(size: SizeWorth) -> str:
    titles = ("", *map(escape, size.whole), "")
    whole = "".join(f"<td>{_plain(i, '.4f')}</td>" for i in size.whole.values())
    rows = f"<tr><td>loss of the whole recipe</td>{whole}<td></td></tr>"
    for worth in size.worths:
        cells = "".join(f"<td>{_plain(i, '+.4f')}</td>" for i in worth.by_set.values())
        name = escape(worth.variant.name)
        rows += f"<tr><td>{name}</td>{cells}<td>{escape(worth.verdict)}</td></tr>"
    return table("operations", titles, rows)


def _plain(interval: Interval, form: str) -> str:
    return f"{interval.value:{form}} ± {interval.high - interval.value:.4f}"
