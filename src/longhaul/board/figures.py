"""The report's figures as plain Plotly JSON; colours are left to the page, which knows its theme.

A trace's `meta` says what it is: `place` (of its segment, for its colour), `kept`, `tone`.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longhaul.board.curves import Curve, short
from longhaul.board.facts import RunFacts
from longhaul.board.incidents import Incident
from longhaul.core.units import sentence

_MOST_IN_LEGEND = 10
_MOST_DIAMONDS = 100
"""More of them would cover the loss."""
_SYMBOLS = {"notice": "circle", "warning": "diamond", "alarm": "triangle-down"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One chart of the page, with the fields that its script reads."""

    name: str
    title: str
    note: str
    """What is drawn, with its definition."""
    traces: Sequence[Json]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 280
    along_steps: bool = True
    """Its x axis counts steps, so that zooming one such figure zooms all."""
    can_be_log: bool = False


def loss_figure(facts: RunFacts) -> Figure:
    """Training and validation loss, with the incidents on top."""
    curves = facts.curves["loss"]
    traces = [*_stretches(curves, "loss", legend=True), *_means(facts.curves["mean loss"])]
    for kept in (False, True):
        points = [v for v in facts.validations if v.kept is kept and math.isfinite(v.loss)]
        if points:
            traces.append(
                {
                    "x": [v.step for v in points], "y": [short(v.loss) for v in points],
                    "mode": "markers" if len(points) <= _MOST_DIAMONDS else "lines",
                    "name": "validation", "showlegend": kept,
                    "meta": {"ink": "validation", "kept": kept},
                    "marker": {"symbol": "diamond", "size": 8 if kept else 6},
                    "hovertemplate": "validation %{y:.4f}<br>step %{x:,}<extra></extra>",
                }
            )  # fmt: skip
    return _loss([*traces, *_incident_marks(facts.incidents, facts.step)], curves)


def loss_preview(curves: Sequence[Curve]) -> Figure:
    """The same figure while nothing is known but these curves."""
    return _loss(_stretches(curves, "loss", legend=True), curves)


def _loss(traces: Sequence[Json], curves: Sequence[Curve]) -> Figure:
    layout: Json = {"yaxis": {"title": {"text": "nats"}}}
    if limits := _loss_limits(curves):
        layout["yaxis"]["range"] = limits
    return Figure(
        "loss", "Loss",
        "Mean over the target tokens of each global batch, coloured by segment; faint: steps that "
        "were rolled back or lost. Diamonds, or a line of its own: validation. Numbers: incidents.",
        traces,
        {**layout, "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False,
                              "fixedrange": True}},
        460, can_be_log=True,
    )  # fmt: skip


def step_figures(facts: RunFacts) -> list[Figure]:
    """Learning rate, gradient norm, loss scale and throughput; without data there is no figure."""
    clip = facts.settings.get("optim", {}).get("clip")
    threshold = []
    norms = facts.curves["gradient_norm"]
    if isinstance(clip, int | float) and clip > 0 and norms:
        ends = [min(min(c.x) for c in norms), max(max(c.x) for c in norms)]
        threshold = [
            {
                "x": ends, "y": [clip, clip], "mode": "lines", "name": f"clipped at {clip:g}",
                "meta": {"ink": "quiet"}, "line": {"dash": "dash", "width": 1},
                "hoverinfo": "skip", "showlegend": False,
            }
        ]  # fmt: skip
    figures = [
        Figure(
            "learning_rate", "Learning rate", "As in force at each step.",
            _stretches(facts.curves["learning_rate"], "lr"),
            {"yaxis": {"exponentformat": "e", "rangemode": "tozero"}},
        ),
        Figure(
            "gradient_norm", "Gradient norm",
            "Root of the summed squares over all parameters, before clipping; dashed: where "
            "clipping begins.",
            [
                *_stretches(norms, "norm"), *_means(facts.curves["mean gradient_norm"]),
                *threshold,
            ],
            {"yaxis": {"type": "log"}},
        ),
        Figure(
            "loss_scale", "Loss scale", "What the loss is multiplied by before the backward pass.",
            _stretches(facts.curves["loss_scale"], "scale"), {"yaxis": {"type": "log"}},
        ),
        Figure(
            "throughput", "Throughput",
            "Target tokens over the seconds of training and waiting for data.",
            _stretches(facts.curves["throughput"], "tokens/s"),
            {"yaxis": {"rangemode": "tozero", "title": {"text": "tokens/s"}}},
        ),
    ]  # fmt: skip
    return [figure for figure in figures if any("place" in t["meta"] for t in figure.traces)]


def progress_figure(facts: RunFacts) -> Figure:
    """Step over the time of day: falls are rollbacks, flat stretches are waits."""
    curves = [
        Curve(c.segment, c.place, c.kept, tuple(1000 * x for x in c.x), c.y)
        for c in facts.curves["progress"]
    ]
    course = sorted(point for curve in curves for point in zip(curve.x, curve.y, strict=True))
    thread = {
        "x": [x for x, _ in course], "y": [y for _, y in course], "mode": "lines",
        "meta": {"ink": "quiet", "kept": False}, "line": {"width": 1, "dash": "dot"},
        "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    return Figure(
        "progress", "Progress",
        "Step over time (UTC). A fall is a rollback, a long dotted stretch a wait.",
        [thread, *_stretches(curves, "step", at="%{x|%d %b %H:%M:%S}")] if course else [],
        {"xaxis": {"type": "date"}, "yaxis": {"rangemode": "tozero", "title": {"text": "step"}}},
        along_steps=False,
    )  # fmt: skip


def _stretches(
    curves: Iterable[Curve], noun: str, at: str = "step %{x:,}", *, legend: bool = False
) -> list[Json]:
    curves = list(curves)
    named = len({curve.segment for curve in curves})
    shown: set[str] = set()
    traces = []
    # Lost stretches first, so that what was kept lies on top of them.
    for curve in sorted(curves, key=lambda curve: curve.kept):
        lost = "" if curve.kept else ", rolled back"
        first = curve.kept and curve.segment not in shown
        shown |= {curve.segment} if curve.kept else set()
        traces.append(
            {
                "x": list(curve.x), "y": [short(y) for y in curve.y],
                "mode": "lines" if len(curve.x) > 1 else "markers",
                "name": curve.segment, "legendgroup": curve.segment,
                "showlegend": legend and first and 1 < named <= _MOST_IN_LEGEND,
                "meta": {"place": curve.place, "kept": curve.kept},
                "hovertemplate": f"{noun} %{{y:.5~g}}<br>{at}<br>segment {curve.segment}{lost}"
                                 "<extra></extra>",
            }
        )  # fmt: skip
    return traces


def _means(curves: Iterable[Curve]) -> list[Json]:
    """A thin dark line through what is otherwise the band between smallest and largest."""
    return [
        {
            "x": list(curve.x), "y": [short(y) for y in curve.y], "mode": "lines", "name": "mean",
            "meta": {"ink": "ink"}, "line": {"width": 1.2}, "showlegend": False,
            "hovertemplate": "mean %{y:.5~g}<br>to step %{x:,}<extra></extra>",
        }
        for curve in curves if curve.kept
    ]  # fmt: skip


def _incident_marks(found: Sequence[Incident], last_step: int) -> list[Json]:
    heights = _heights([incident.step for incident in found], max(last_step, 1) / 60)
    marks = list(zip(itertools.count(1), found, heights, strict=False))
    return [
        {
            "x": [i.step for _, i, _ in own], "y": [height for _, _, height in own], "yaxis": "y2",
            "mode": "markers+text", "name": tone, "showlegend": False,
            "text": [str(number) for number, _, _ in own], "textposition": "bottom center",
            "customdata": [number for number, _, _ in own],
            "meta": {"tone": tone}, "marker": {"symbol": symbol, "size": 11},
            "hovertext": [_hover(number, i) for number, i, _ in own], "hoverinfo": "text",
        }
        for tone, symbol in _SYMBOLS.items()
        if (own := [mark for mark in marks if mark[1].tone == tone])
    ]  # fmt: skip


def _heights(steps: Sequence[int], width: float) -> list[float]:
    """Marks that would cover each other are hung one below the other, five deep."""
    heights: list[float] = []
    for number, step in enumerate(steps):
        taken = {heights[k] for k in range(number) if abs(steps[k] - step) < width}
        free = (round(0.965 - 0.075 * depth, 3) for depth in range(5))
        heights.append(next((height for height in free if height not in taken), 0.665))
    return heights


def _hover(number: int, incident: Incident) -> str:
    words, lines = sentence(incident.sentence).split(), [f"{number}. {incident.kind}"]
    for word in words:
        if len(lines) == 1 or len(lines[-1]) + len(word) > 60:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    # Plotly reads a little markup in hover texts, and people type what they like.
    return "<br>".join(line.replace("&", "&amp;").replace("<", "&lt;") for line in lines)


def _loss_limits(curves: Iterable[Curve]) -> list[float] | None:
    """Space for everything that was kept; a spike that was rolled back may leave the picture."""
    kept = sorted(y for curve in curves if curve.kept for y in curve.y)
    if not kept:
        return None
    first = next(curve.y[0] for curve in curves if curve.kept)
    high = max(first, kept[min(len(kept) - 1, int(0.995 * len(kept)))])
    space = 0.06 * max(high - kept[0], 1e-3)
    return [kept[0] - space, high + 2.5 * space]
