"""A profile as one offline page with pictures, in the board's looks."""

from html import escape

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
from longhaul.core.units import count, sentence, short_bytes, short_count
from longhaul.plan.profile import PAGE, TRACE, Profile
from longhaul.plan.roofline import Row
from longhaul.plan.surprises import plain, short_time, undisturbed_s

_MOST_PARTS, _MOST_POINTS, _MOST_ROWS = 14, 60, 24
_LEGEND = {"orientation": "h", "traceorder": "normal", "y": 1.02, "yanchor": "bottom"}
_MOST_DISTURBED = 0.2
_BOUNDS = {"compute": "bound by computing", "memory": "bound by memory", "launch": "too small"}


def write_page(made: Profile) -> None:
    """Write it beside the trace; UsageError if it cannot be."""
    write(made.folder / PAGE, render(made, plotly_script()), "DIR")


def render(made: Profile, plotly: str) -> str:
    """The whole page."""
    figures = [_stages(made), _parts(made), _roofline(made)]
    header = f"""<p class="kicker">Profile of a training step</p>
<h1>{escape(made.recipe)}</h1>
<p class="short">{escape(in_short(made))}</p>"""
    sections = f"""{_key_figures(made)}
{section("surprises", "What costs more than it should", _surprises(made))}
{"".join(map(figure_section, figures))}
{section("operations", "Operations", _table(made))}
{section("trace", "The trace", _TRACE)}"""
    footer = f"Written by longhaul {escape(longhaul.__version__)}."
    return document(f"{made.recipe}, profile", header, sections, footer, figures, plotly)


def in_short(made: Profile) -> str:
    """One sentence; another if the machine had other work."""
    ordered = sorted(made.timeline.stages.items(), key=lambda item: -item[1])
    largest = ", ".join(f"{name} {s / made.timeline.seconds:.0%}" for name, s in ordered[:3])
    said = f"A step takes {short_time(made.seen.plain_s)} on {made.ceilings.device}: {largest}."
    if made.disturbed > _MOST_DISTURBED:
        said += f" Other work had the processor for {made.disturbed:.0%} of it."
    return said


def _key_figures(made: Profile) -> str:
    products = " · ".join(
        f"{short_count(rate / 1e9)} GFLOP/s {kind.rpartition('::')[2].lower()}"
        for kind, rate in made.ceilings.flops.items()
    )
    timeline = made.timeline
    cards = [
        ("step", short_time(made.seen.plain_s), f"{short_time(made.step_s)} while watched"),
        ("watched", count(timeline.steps, "step"), f"{made.seen.gauge_steps} of them with gauges"),
        ("operations", short_count(len(timeline.operations) / timeline.steps), "a step"),
        ("memory", f"{short_bytes(made.ceilings.bandwidth)}/s", "read and written, large copy"),
        ("products", products.partition(" · ")[0] or "–", products.partition(" · ")[2] or
         "of large matrices"),
    ]  # fmt: skip
    return key_figures(cards)


def _surprises(made: Profile) -> str:
    """Each with its price, its share and a remedy."""
    if not made.surprises:
        return '<p class="empty">Nothing: every part takes what its work asks for.</p>'
    step_s = undisturbed_s(made.timeline, made.seen)
    items = "".join(
        f"<li class='{'alarm' if number < 3 else 'warning'}'><time>{short_time(one.seconds)}</time>"
        f"<span class='step'>{one.seconds / step_s:.1%} of a step</span><span class='what'>"
        f"<span class='head'>{escape(sentence(one.sentence))}</span> "
        f"→ {escape(one.remedy)}</span></li>"
        for number, one in enumerate(made.surprises)
    )
    return f"<ol class='entries'>{items}</ol>"


def _stages(made: Profile) -> Figure:
    timeline = made.timeline
    traces = [
        {
            "type": "bar", "orientation": "h", "y": ["step"], "x": [1e3 * seconds / timeline.steps],
            "name": f"{stage} {seconds / timeline.seconds:.1%}",
            "meta": {"ink": "quiet"} if stage == "idle" else {"place": place},
            "hovertemplate": f"{stage} %{{x:.3~g}} ms<extra></extra>",
        }
        for place, (stage, seconds) in enumerate(timeline.stages.items()) if seconds
    ]  # fmt: skip
    who, idle = "the training thread", "Python between operations"
    if timeline.on_device:
        who, idle = "the device", "the device waits for the host"
    return Figure(
        "stages", "Where a step goes",
        f"An average step while it is watched, by what {who} does; the parts add up to "
        f"it. Idle: {idle}.",
        traces,
        {"barmode": "stack", "showlegend": True, "xaxis": {"title": {"text": "ms"}},
         "yaxis": {"visible": False}, "legend": _LEGEND},
        190, along_steps=False,
    )  # fmt: skip


def _parts(made: Profile) -> Figure:
    shown = made.parts[:_MOST_PARTS][::-1]
    kinds = [
        ("what its work would take", {"place": 2}, [part.fair for part in shown]),
        ("of it in small operations", {"place": 5}, [part.small for part in shown]),
        ("measured", {"place": 0}, [part.seconds for part in shown]),
    ]
    traces = [
        {
            "type": "bar", "orientation": "h", "y": [part.name for part in shown],
            "x": [float(f"{1e3 * value:.4g}") for value in values], "name": name, "meta": meta,
            "hovertemplate": f"%{{y}}: {name} %{{x:.3~g}} ms<extra></extra>",
        }
        for name, meta, values in kinds
    ]  # fmt: skip
    note = (
        "Each module with its gradients, layers taken together, against its time at the roofline "
        "times the pace of all others; a look-up table against the rows that it must move."
    )
    if made.uncompiled is not None:
        note += " Compiled code has no modules: these are of as many steps uncompiled."
    layout = {"barmode": "group", "showlegend": True, "xaxis": {"title": {"text": "ms a step"}},
              "legend": _LEGEND | {"traceorder": "reversed"}}  # fmt: skip
    return Figure("parts", "Parts of the model", note, traces if shown else [], layout,
                  110 + 34 * max(1, len(shown)), along_steps=False)  # fmt: skip


def _roofline(made: Profile) -> Figure:
    shown = [row for row in made.rows if row.attainable and row.seconds][:_MOST_POINTS]
    if not shown:
        return Figure("roofline", "Operations against the roofline", "", [])
    ends = [1e6 * pick(_call(row)[0] for row in shown) for pick in (min, max)]
    line = {
        "x": ends, "y": ends, "mode": "lines", "name": "roofline", "meta": {"ink": "quiet"},
        "line": {"dash": "dash", "width": 1}, "hoverinfo": "skip",
    }  # fmt: skip
    traces = [
        {
            "mode": "markers", "name": said, "meta": {"place": place},
            "x": [1e6 * _call(row)[0] for row in own], "y": [1e6 * _call(row)[1] for row in own],
            "text": [f"{escape(plain(row.name))} {row.shapes}<br>{row.calls:g} calls, "
                     f"{row.share:.1%} of the step" for row in own],
            "marker": {"size": [7 + 60 * row.share**0.5 for row in own], "opacity": 0.75},
            "hovertemplate": "%{text}<br>%{y:.3~g} µs, attainable %{x:.3~g} µs<extra></extra>",
        }
        for place, (bound, said) in enumerate(_BOUNDS.items())
        if (own := [row for row in shown if row.bound == bound])
    ]  # fmt: skip
    axis = {"type": "log"}
    layout = {"showlegend": True,
              "xaxis": axis | {"title": {"text": "attainable, µs a call"}},
              "yaxis": axis | {"title": {"text": "measured, µs a call"}}}  # fmt: skip
    note = (
        "A call of each operation against what its products, or its bytes, take at the measured "
        "ceilings; the larger the dot, the more of the step. On the line it is as fast as "
        "it can be here, below it its numbers were in a cache."
    )
    return Figure("roofline", "Operations against the roofline", note, [line, *traces], layout, 460,
                  along_steps=False)  # fmt: skip


def _call(row: Row) -> tuple[float, float]:
    """Attainable and measured seconds of one call."""
    return row.attainable / row.calls, row.seconds / row.calls


def _table(made: Profile) -> str:
    titles = ("operation", "shapes", "calls a step", "ms a step", "share", "FLOPs", "bytes",
              "of the roofline", "")  # fmt: skip
    rows = "".join(f"<tr>{_cells(row)}</tr>" for row in made.rows[:_MOST_ROWS])
    return table("operations", titles, rows)


def _cells(row: Row) -> str:
    worked = bool(row.attainable)
    words = (
        plain(row.name), row.shapes, f"{row.calls:.4g}", f"{1e3 * row.seconds:.3g}",
        f"{row.share:.1%}", short_count(row.flops) if row.flops else "–",
        short_bytes(row.bytes) if worked else "–", f"{row.achieved:.0%}" if worked else "–",
        _BOUNDS[row.bound] if worked else "",
    )  # fmt: skip
    return "".join(f"<td>{escape(word)}</td>" for word in words)


_TRACE = (
    f"<p>Beside this page lies <code>{TRACE}</code>, all threads and operations of the watched "
    "steps: open it in ui.perfetto.dev or chrome://tracing. Ranges named "
    "<code>longhaul/stage/…</code> and <code>longhaul/module/…</code> are what this page is made "
    "of.</p>"
)
