"""Published runs simulated, the span over what is assumed, and a study over sizes.

    python -m benchmarks.simulation [--seeds 8] [--workers 2] [--page simulation.html]

Every figure of docs/simulation.md comes from here: results go to `results/simulation.json`, tables
to the document. Nothing is measured but the time of a simulated run; the figures are the same on
every machine, because each seed has its own random numbers. Takes a quarter of an hour.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.common import (
    RESULTS,
    ROOT,
    Bar,
    at_least,
    at_most,
    circumstances,
    figure,
    print_table,
    rewrite_block,
)

from longhaul.board.simulation import write_page
from longhaul.plan.simulate.engine import simulate
from longhaul.plan.simulate.inputs import Scenario
from longhaul.plan.simulate.outcome import PARTS
from longhaul.plan.simulate.presets import preset
from longhaul.plan.simulate.study import (
    CHANGES,
    SIZES,
    Size,
    Swing,
    at_size,
    by_spares,
    sized,
    span,
    swings,
)

DOCUMENT = ROOT / "docs" / "simulation.md"
COMMAND = "python -m benchmarks.simulation"
NAMES = ("opt-175b", "llama-3-405b")
_SHORT_DAYS = 4.5
"""Of the large preset where its inputs are varied: a twelfth of its days."""
_HALF_DAYS = 27.0
"""Of the large preset itself: half of its days, as its rates do not change."""
_FAILURES = 30.0
_SPARES_AT = 16_384
_SPARES = (0, 3, 6, 12)
POINTS = 0.05


def short(name: str, longhaul: bool) -> Scenario:
    """A preset for what is simulated hundreds of times."""
    scenario = preset(name, longhaul)
    return replace(scenario, days=_SHORT_DAYS) if scenario.gpus > 4096 else scenario


def timed(name: str, longhaul: bool) -> float:
    """Seconds of one simulated run."""
    scenario, began = preset(name, longhaul), time.perf_counter()
    simulate(scenario, [0])
    return time.perf_counter() - began


def swing_json(swing: Swing) -> dict[str, Any]:
    return {"input": swing.name, "low": swing.low, "high": swing.high} | {
        f"given_{name}": value for name, value in asdict(swing.given).items()
    }


def size_json(size: Size) -> dict[str, Any]:
    scenario = size.result.scenario
    between_s = 86_400 / scenario.failures_per_day
    worth = {name: asdict(one) for name, one in size.worth.items()}
    own = {k: v for k, v in size.result.as_json().items() if k != "inputs"}
    return own | {"between_s": between_s, "worth": worth}


def bars_of(parts: Mapping[str, Any]) -> list[Bar]:
    """What the issue asks for."""
    opt, _, llama, _ = parts["runs"]
    bars = [
        at_most("OPT-175B, as it was: points from what was published",
                100 * abs(opt["effective"] - opt["published"]), "points", 100 * POINTS),
        at_least("Llama 3 405B, as it was: effective time, published > 90 %",
                 100 * llama["effective"], "%", 100 * (llama["published"] - POINTS)),
    ]  # fmt: skip
    bars += [
        figure(f"{run['scenario']}: effective time", 100 * run["effective"], "%")
        for run in parts["runs"]
    ]
    for name, seconds in parts["seconds"].items():
        if name.startswith("OPT"):
            bars.append(at_most(f"{name}: seconds for one run", seconds, "s", 10.0))
    return bars


def runs_table(parts: Mapping[str, Any]) -> str:
    lines = ["| run | published | simulated, 95 % of the mean | single runs | over the assumed "
             "| failures | a person waited for |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for run in parts["runs"]:
        bound = "> " if run["scenario"].startswith("Llama") else ""
        published = "" if run["published"] is None else f"{bound}{100 * run['published']:.0f} %"
        over = parts["spans"][run["scenario"]]
        lines.append(
            f"| {run['scenario']} | {published} | **{100 * run['effective']:.1f} %** "
            f"({100 * run['low']:.1f} to {100 * run['high']:.1f}) | {100 * run['least']:.1f} to "
            f"{100 * run['most']:.1f} % | {100 * over['low']:.0f} to {100 * over['high']:.0f} % | "
            f"{run['failures']:.0f} | {run['people']:.1f} times |"
        )
    return "\n".join(lines)


def time_table(parts: Mapping[str, Any]) -> str:
    runs = parts["runs"]
    shown = [part for part in PARTS if any(run["shares"][part] >= 5e-5 for run in runs)]
    lines = ["| % of wall time | " + " | ".join(run["scenario"] for run in runs) + " |",
             "|---|" + "---|" * len(runs)]  # fmt: skip
    for part in shown:
        cells = " | ".join(f"{100 * run['shares'][part]:.2f}" for run in runs)
        lines.append(f"| {part} | {cells} |")
    return "\n".join(lines)


def swings_table(parts: Mapping[str, Any], name: str) -> str:
    lines = [
        "| input | value | span | effective at its ends | taken after |",
        "|---|---|---|---|---|",
    ]
    for swing in parts["swings"][name]:
        unit = swing["given_unit"]
        low, high = _said(swing["given_low"], unit), _said(swing["given_high"], unit)
        after = swing["given_source"].removeprefix("assumed").removeprefix(": ")
        lines.append(
            f"| {_words(swing['input'])} | {_said(swing['given_value'], unit)} | {low} to {high} | "
            f"{100 * swing['low']:.1f} to {100 * swing['high']:.1f} % | {after} |"
        )
    return "\n".join(lines)


def sizes_table(parts: Mapping[str, Any]) -> str:
    lines = [
        "| GPUs | a failure every | spares | effective | the three largest losses | "
        + " | ".join(CHANGES)
        + " |",
        "|---|---|---|---|---|" + "---|" * len(CHANGES),
    ]
    for size in parts["sizes"]:
        lost = sorted(((v, k) for k, v in size["shares"].items() if k != "training"), reverse=True)
        largest = ", ".join(f"{part} {100 * share:.2f} %" for share, part in lost[:3])
        worth = " | ".join(_worth(size["worth"][change]) for change in CHANGES)
        half = 100 * (size["high"] - size["effective"])
        lines.append(
            f"| {size['gpus']:,} | {_said(size['between_s'], 's')} | {size['spares']} | "
            f"{100 * size['effective']:.2f} ± {half:.2f} % | {largest} | {worth} |"
        )
    return "\n".join(lines)


def spares_table(parts: Mapping[str, Any]) -> str:
    lines = ["| spares | effective |", "|---|---|"]
    for one in parts["spares"]:
        half = 100 * (one["high"] - one["effective"])
        lines.append(f"| {one['spares']} | {100 * one['effective']:.2f} ± {half:.2f} % |")
    return "\n".join(lines)


def tables(parts: Mapping[str, Any]) -> dict[str, str]:
    """Name of a block of the document → what it holds."""
    found = {"runs": runs_table(parts), "time": time_table(parts), "sizes": sizes_table(parts),
             "spares": spares_table(parts)}  # fmt: skip
    for number, name in enumerate(parts["swings"]):
        found[f"assumed {number + 1}"] = swings_table(parts, name)
    return found


def _worth(one: Mapping[str, float]) -> str:
    sure = one["low"] > 0 or one["high"] < 0
    said = f"{100 * one['value']:+.2f}"
    return f"**{said}**" if sure else said


def _words(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")


def _said(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.3g} {unit}".strip()
    for word, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= length * (2 if word == "days" else 1):
            return f"{value / length:.3g} {word}"
    return f"{value:.3g} s"


def jobs(seeds: Sequence[int]) -> dict[str, tuple[Any, ...]]:
    """Name of a part → what makes it; cheap ones first."""
    few, found = seeds[:3], dict[str, tuple[Any, ...]]()
    kinds = [(name, longhaul) for name in NAMES for longhaul in (False, True)]
    for kind in kinds:
        small = kind[0] == NAMES[0]
        scenario = preset(*kind) if small else replace(preset(*kind), days=_HALF_DAYS)
        found[f"run {preset(*kind).name}"] = (simulate, scenario, seeds if small else few)
        found[f"span {preset(*kind).name}"] = (span, short(*kind), 24 if small else 8)
    for gpus in SIZES:
        found[f"size {gpus}"] = (sized, gpus, few, _FAILURES)
    was = short(NAMES[0], False)
    found[f"swings {was.name}"] = (swings, was, few)
    found["spares"] = (by_spares, at_size(_SPARES_AT, _FAILURES), _SPARES, few)
    return found


def gathered(seeds: Sequence[int], workers: int) -> dict[str, Any]:
    """Every part by name, as it is."""
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(*job): name for name, job in jobs(seeds).items()}
        found = dict[str, Any]()
        for one in as_completed(running):
            found[running[one]] = one.result()
            print(f"  {running[one]}: {len(found)} of {len(running)} parts", flush=True)
    return found


def parts_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the result file."""
    names = [preset(name, longhaul).name for name in NAMES for longhaul in (False, True)]
    return {
        "runs": [found[f"run {name}"].as_json() for name in names],
        "spans": {name: asdict(found[f"span {name}"]) for name in names},
        "swings": {
            name: [swing_json(swing) for swing in found[f"swings {name}"]]
            for name in names if f"swings {name}" in found
        },
        "sizes": [size_json(found[f"size {gpus}"]) for gpus in SIZES],
        "spares": [
            {"spares": count, "effective": i.value, "low": i.low, "high": i.high}
            for count, i in found["spares"]
        ],
        "seconds": {preset(NAMES[0], own).name: timed(NAMES[0], own) for own in (False, True)},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--tables", action="store_true", help="only write the tables again")
    asked = parser.parse_args()
    path = RESULTS / "simulation.json"
    if asked.tables:
        parts = json.loads(path.read_text())["parts"]
    else:
        found = gathered(range(asked.seeds), asked.workers)
        parts = parts_of(found)
        bars = bars_of(parts)
        body = {"benchmark": "simulation", "command": COMMAND, **circumstances()}
        body |= {"bars": [asdict(bar) for bar in bars], "parts": parts}
        path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")
        print_table("simulation", bars)
        if asked.page is not None:
            results = [one for name, one in found.items() if name.startswith("run ")]
            ordered = sorted(
                results, key=lambda result: (result.scenario.gpus, result.scenario.name)
            )
            sizes = [found[f"size {gpus}"] for gpus in SIZES]
            write_page(asked.page, ordered, found["swings OPT-175B"], sizes)
    for name, text in tables(parts).items():
        rewrite_block(DOCUMENT, name, text)


if __name__ == "__main__":
    sys.exit(main())
