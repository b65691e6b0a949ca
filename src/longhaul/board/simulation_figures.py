"""The pictures of simulated runs as plain Plotly JSON: where time goes, sizes, spans of inputs."""

from collections.abc import Sequence
from typing import Final

from longhaul.board.figures import Figure, Json
from longhaul.plan.simulate.outcome import Part, Result
from longhaul.plan.simulate.study import Size, Swing

GROUPS: Final[dict[str, tuple[Part, ...]]] = {
    "lost work": ("lost work",),
    "waiting for people": ("people",),
    "restart, waiting for nodes": ("restart", "nodes"),
    "detection and diagnosis": ("detection", "diagnosis"),
    "save stalls": ("save stalls",),
    "slow steps, planned work, outages": ("slow", "planned", "outage"),
}
"""What a reader compares, in the six inks of the page."""
_MOST_SWINGS = 14


def words_of(name: str) -> str:
    """An input's name for people."""
    return name.removesuffix("_s").replace("_", " ")


def time_figure(results: Sequence[Result]) -> Figure:
    """Where the time that was not training went, a bar a scenario."""
    order = list(reversed(results))
    traces = _grouped([r.scenario.name for r in order], [r.shares() for r in order], "h")
    layout = {"barmode": "stack", "showlegend": True, "yaxis": {"automargin": True},
              "xaxis": {"title": {"text": "% of wall time"}, "rangemode": "tozero"}}  # fmt: skip
    return Figure(
        "time", "Where the time goes that is not training",
        "Mean share of wall time over all seeds. What is left to 100 % is training that was kept.",
        traces, layout, 190 + 60 * len(results), along_steps=False,
    )  # fmt: skip


def _grouped(names: list[str], shares: Sequence[dict[Part, float]], orientation: str) -> list[Json]:
    along, across = ("x", "y") if orientation == "h" else ("y", "x")
    return [
        {
            "type": "bar", "orientation": orientation, "name": group, "meta": {"place": place},
            across: names, along: [round(100 * sum(one[p] for p in parts), 4) for one in shares],
            "hovertemplate": f"{group}: %{{{along}:.2f}} %<extra>%{{{across}}}</extra>",
        }
        for place, (group, parts) in enumerate(GROUPS.items())
    ]  # fmt: skip


def course_figure(results: Sequence[Result]) -> Figure:
    """Days of training kept over days of wall time, a line a seed."""
    traces: list[Json] = []
    last = 0.0
    for place, result in enumerate(results):
        for number, outcome in enumerate(result.outcomes):
            days = [day for day, _ in outcome.course]
            last = max(last, max(days, default=0.0))
            traces.append({
                "x": days, "y": [kept for _, kept in outcome.course], "mode": "lines",
                "name": result.scenario.name, "legendgroup": str(place),
                "showlegend": number == 0, "meta": {"place": place},
                "line": {"width": 2 if number == 0 else 0.8},
                "hovertemplate": f"day %{{x:.1f}}: %{{y:.2f}} days of training kept<extra>"
                                 f"seed {outcome.seed}</extra>",
            })  # fmt: skip
    ideal = {"x": [0, last], "y": [0, last], "mode": "lines", "name": "without any failure",
             "meta": {"ink": "quiet"}, "line": {"dash": "dash", "width": 1},
             "hoverinfo": "skip"}  # fmt: skip
    layout = {
        "showlegend": True,
        "xaxis": {"title": {"text": "day"}},
        "yaxis": {"title": {"text": "days of training kept"}, "rangemode": "tozero"},
    }
    return Figure(
        "course", "How far each run comes",
        "One line a seed; a flat stretch is a run that stands, a fall is work that is lost. A line "
        "that ends early has made its last step.",
        [ideal, *traces], layout, 420, along_steps=False,
    )  # fmt: skip


def swing_figure(swings: Sequence[Swing], middle: float) -> Figure:
    """Effective time with each assumed input at both ends of its span."""
    shown = list(reversed(swings[:_MOST_SWINGS]))
    names = [words_of(swing.name) for swing in shown]
    ends = (("low end of its span", [s.low for s in shown], 0),
            ("high end of its span", [s.high for s in shown], 1))  # fmt: skip
    traces: list[Json] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": end,
            "meta": {"place": place},
            "y": names,
            "base": [round(100 * middle, 4)] * len(names),
            "x": [round(100 * (value - middle), 4) for value in values],
            "customdata": [round(100 * value, 3) for value in values],
            "hovertemplate": f"%{{y}} at the {end}: %{{customdata:.2f}} %<extra></extra>",
        }
        for end, values, place in ends
    ]
    layout = {"barmode": "overlay", "showlegend": True, "yaxis": {"automargin": True},
              "xaxis": {"title": {"text": "effective time, %"}}}  # fmt: skip
    return Figure(
        "swings", "How much each assumed input matters",
        "One input at a time at the ends of its span, all others at their values. Seeds are the "
        "same for all; a bar of a point or less may be luck.",
        traces, layout, 150 + 26 * len(shown), along_steps=False,
    )  # fmt: skip


def size_figures(sizes: Sequence[Size]) -> list[Figure]:
    """What limits each size, and what a change is worth there."""
    names = [f"{size.result.scenario.gpus:,}" for size in sizes]
    goodput = [100 * size.result.effective.value for size in sizes]
    intervals = [100 * (s.result.effective.high - s.result.effective.value) for s in sizes]
    line: Json = {
        "x": names, "y": [round(value, 4) for value in goodput], "mode": "lines+markers+text",
        "name": "effective", "meta": {"ink": "ink"}, "showlegend": False,
        "text": [f"{value:.1f}" for value in goodput], "textposition": "top center",
        "error_y": {"type": "data", "array": [round(value, 4) for value in intervals]},
        "hovertemplate": "%{x} GPUs: %{y:.2f} % effective<extra></extra>",
    }  # fmt: skip
    worth = [
        {
            "type": "bar", "name": change, "meta": {"place": place}, "x": names,
            "y": [round(100 * size.worth[change].value, 4) for size in sizes],
            "error_y": {"type": "data", "thickness": 1, "array": [
                round(100 * (size.worth[change].high - size.worth[change].value), 4)
                for size in sizes]},
            "hovertemplate": f"{change}: %{{y:+.3f}} points<extra>%{{x}} GPUs</extra>",
        }
        for place, change in enumerate(sizes[0].worth)
    ]  # fmt: skip
    gpus = {"title": {"text": "GPUs"}, "type": "category"}
    return [
        Figure(
            "sizes", "Goodput by size",
            "Under longhaul, on GPUs that fail as Llama 3's did, with as many spares as nodes are "
            "in repair on average. Bars are 95 % of the mean over seeds.",
            [line], {"xaxis": gpus, "yaxis": {"title": {"text": "effective time, %"}}}, 340,
            along_steps=False,
        ),
        Figure(
            "limits", "What limits each size", "Mean share of wall time that is not training.",
            _grouped(names, [size.result.shares() for size in sizes], "v"),
            {"barmode": "stack", "showlegend": True, "xaxis": gpus,
             "yaxis": {"title": {"text": "% of wall time"}}}, 400, along_steps=False,
        ),
        Figure(
            "worth", "What would help",
            "Points of effective time that a change gains, over the same seeds, with 95 % of the "
            "mean: bars that reach over zero may be luck.",
            worth, {"barmode": "group", "showlegend": True, "xaxis": gpus,
                    "yaxis": {"title": {"text": "points"}}}, 400, along_steps=False,
        ),
    ]  # fmt: skip
