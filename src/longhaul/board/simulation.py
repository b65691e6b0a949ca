"""Simulated runs as one offline page with pictures, in the board's looks."""

from collections.abc import Sequence
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
from longhaul.board.simulation_figures import (
    course_figure,
    size_figures,
    swing_figure,
    time_figure,
    words_of,
)
from longhaul.core.units import count, short_seconds
from longhaul.plan.simulate.inputs import NOT_TOLD, OWN, Input
from longhaul.plan.simulate.outcome import Result, summed
from longhaul.plan.simulate.study import Size, Swing


def write_page(
    path: Path,
    results: Sequence[Result],
    swings: Sequence[Swing] = (),
    sizes: Sequence[Size] = (),
) -> None:
    """Write it; UsageError if it cannot be."""
    write(path, render(results, plotly_script(), swings, sizes), "FILE")


def render(
    results: Sequence[Result],
    plotly: str,
    swings: Sequence[Swing] = (),
    sizes: Sequence[Size] = (),
) -> str:
    """The whole page; the swings are those of the first result."""
    first = results[0]
    figures = [time_figure(results), course_figure(results)]
    if swings:
        figures.append(swing_figure(swings, first.effective.value))
    later = size_figures(sizes) if sizes else []
    header = f"""<p class="kicker">Simulation of failures</p>
<h1>{escape(first.scenario.name)}</h1>
<p class="short">{escape(" ".join(map(_sentence, results)))}</p>"""
    cards = [card for result in results for card in _cards(result)]
    body = [key_figures(cards), *map(figure_section, figures), *_study(later, sizes)]
    body += [section("compared", "In figures", _compared(results))]
    body += [section("causes", "What failed", _causes(results))]
    body += [
        section(f"inputs-{number}", f"Inputs of {result.scenario.name}", _inputs(result))
        for number, result in enumerate(results)
    ]
    footer = (
        f"Made by longhaul {escape(longhaul.__version__)}. Failures, repairs and incidents are "
        "drawn at random; what follows them is decided by the code of supervise/ and recover/ that "
        "decides in a live run. Nothing was trained."
    )
    title = f"simulation of {first.scenario.name}"
    drawn: list[Figure] = [*figures, *later]
    return document(title, header, "\n".join(body), footer, drawn, plotly)


def _sentence(result: Result) -> str:
    scenario, effective = result.scenario, result.effective
    said = f"{scenario.name}: {effective.value:.1%} of the time is training that is kept"
    if scenario.published is not None:
        bound = "more than " if scenario.at_least else ""
        said += f", where {bound}{scenario.published:.0%} was published"
    part, share = result.limits()[0]
    return f"{said}; {part} takes most of the rest, {share:.1%}."


def _cards(result: Result) -> list[tuple[str, str, str]]:
    name = result.scenario.name
    failures = result.mean(lambda outcome: sum(outcome.failures.values()))
    people = result.mean(lambda outcome: outcome.people)
    return [
        (name, f"{result.effective.value:.1%}", "effective time"),
        ("failures", f"{failures:,.0f}", f"in {result.scenario.days:.3g} days at most"),
        ("a person was waited for", f"{people:.3g}", "times"),
    ]


def _study(figures: Sequence[Figure], sizes: Sequence[Size]) -> list[str]:
    if not sizes:
        return []
    rows = "".join(
        f"<tr><td>{size.result.scenario.gpus:,}</td><td>{size.result.scenario.spares:,}</td>"
        f"<td>{short_seconds(86_400 / size.result.scenario.failures_per_day)}</td>"
        f"<td>{size.result.effective.value:.2%}</td>"
        f"<td>{escape(size.limit[0])}, {size.limit[1]:.2%}</td>"
        + "".join(f"<td>{100 * one.value:+.2f}</td>" for one in size.worth.values())
        + "</tr>"
        for size in sizes
    )
    titles = ("GPUs", "spares", "between failures", "effective", "largest loss",
              *map(escape, sizes[0].worth))  # fmt: skip
    body = table("operations", titles, rows)
    return [*map(figure_section, figures), section("study", "The study in figures", body)]


def _compared(results: Sequence[Result]) -> str:
    rows = ""
    for result in results:
        scenario, effective = result.scenario, result.effective
        published = "" if scenario.published is None else f"{scenario.published:.1%}"
        published = f"&gt; {published}" if scenario.at_least else published
        width = f" ± {100 * (effective.high - effective.value):.1f}"
        interval = width if len(result.outcomes) > 1 else ""
        rows += (
            f"<tr><td>{escape(scenario.name)}</td><td>{published}</td>"
            f"<td>{effective.value:.1%}{interval}</td>"
            f"<td>{result.spread[0]:.1%} to {result.spread[1]:.1%}</td>"
            f"<td>{scenario.nodes:,} + {scenario.spares:,}</td>"
            f"<td>{result.mean(lambda o: o.restarts):,.0f}</td>"
            f"<td>{result.mean(lambda o: o.rollbacks):,.1f}</td>"
            f"<td>{result.mean(lambda o: o.refused):,.0f}</td></tr>"
        )
    titles = ("", "published", "effective, 95 % of the mean", "single runs", "nodes + spares",
              "restarts", "rollbacks", "bad machines recognised")  # fmt: skip
    seeds = count(len(results[0].outcomes), "seed")
    return f'<p class="note">Means over {seeds}.</p>' + table("operations", titles, rows)


def _causes(results: Sequence[Result]) -> str:
    counts = [summed([outcome.failures for outcome in result.outcomes]) for result in results]
    names = sorted(
        {n for one in counts for n in one}, key=lambda n: -max(c.get(n, 0) for c in counts)
    )
    about = {rate.cause: rate for result in results for rate in result.scenario.rates}
    rows = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{one.get(name, 0):.1f}</td>" for one in counts)
        + f"<td>{escape(about[name].shows)}</td><td>{escape(about[name].signature)}</td>"
        f"<td>{1e6 * about[name].per_gpu_day:.3g}</td><td>{escape(about[name].source)}</td></tr>"
        for name in names
    )
    titles = ("cause", *(escape(r.scenario.name) for r in results), "shows as",
              "longhaul's signature", "per million GPU-days", "source of the rate")  # fmt: skip
    return table("operations", titles, rows)


def _inputs(result: Result) -> str:
    scenario = result.scenario
    note = f"A step takes {scenario.step_s:.4g} s at full strength; {scenario.nodes:,} nodes of "
    note += f"{scenario.gpus_per_node}. Marked: assumed."
    told = [(name, given) for name, given in scenario.inputs.listed() if given.source != NOT_TOLD]
    rows = "".join(_row(name, given) for name, given in told)
    rows += "".join(
        f"<tr><td>{escape(words_of(name))}</td><td>longhaul's own</td><td></td>"
        f"<td>{escape(source)}</td></tr>"
        for name, source in OWN.items()
        if getattr(scenario.inputs, name) is None
    )
    titles = ("input", "value", "span", "source")
    return f'<p class="note">{escape(note)}</p>' + table("operations", titles, rows)


def _time(seconds: float) -> str:
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _row(name: str, given: Input) -> str:
    def shown(value: float) -> str:
        return _time(value) if given.unit == "s" else f"{value:.3g} {given.unit}".strip()

    span = ""
    if given.low is not None and given.high is not None:
        span = f"{shown(given.low)} to {shown(given.high)}"
    mark = '<span class="mark">assumed</span> ' if given.assumed else ""
    source = given.source.removeprefix("assumed").removeprefix(": ")
    return (
        f'<tr class="{"warning" if given.assumed else ""}"><td>{escape(words_of(name))}</td>'
        f"<td>{escape(shown(given.value))}</td><td>{escape(span)}</td>"
        f"<td>{mark}{escape(source)}</td></tr>"
    )
