"""What every benchmark shares: bars, result files, paired ratios.

A benchmark is one command that measures longhaul beside a peer or a ceiling in the same run,
prints one table and writes `results/NAME.json`. It exits 0 when it could measure, met or not.
"""

import datetime
import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results"
T = TypeVar("T")
# Student's t, two-sided 95 %, by degrees of freedom.
_T95 = [math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23]


@dataclass(frozen=True)
class Bar:
    """One figure against its bar; `value` is None when it could not be measured."""

    name: str
    value: float | None
    unit: str
    bar: float | None
    met: bool | None
    note: str = ""


def at_most(name: str, value: float, unit: str, bar: float, note: str = "") -> Bar:
    return Bar(name, value, unit, bar, value <= bar, note)


def at_least(name: str, value: float, unit: str, bar: float, note: str = "") -> Bar:
    return Bar(name, value, unit, bar, value >= bar, note)


def figure(name: str, value: float, unit: str, note: str = "") -> Bar:
    """A figure without a bar."""
    return Bar(name, value, unit, None, None, note)


def missing(name: str, reason: str, bar: float | None = None) -> Bar:
    """A figure that could not be measured."""
    return Bar(name, None, "", bar, None, reason)


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of paired ratios, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return format(self, ".2f")

    def __format__(self, spec: str) -> str:
        low, high = format(self.low, spec), format(self.high, spec)
        return f"{format(self.mean, spec)} (95 % interval {low} to {high})"


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ours over theirs, pair by pair."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(logs)
    spread = math.inf
    if len(logs) > 1:
        t = _T95[min(len(logs) - 1, len(_T95) - 1)]
        spread = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - spread), math.exp(mean + spread))


def interleaved(rounds: int, measures: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Measure A B C, C B A, A B C, …: a drift of the machine falls on all alike."""
    measured: dict[str, list[T]] = {name: [] for name in measures}
    for number in range(rounds):
        names = list(measures) if number % 2 == 0 else list(measures)[::-1]
        for name in names:
            measured[name].append(measures[name]())
            print(f"  round {number + 1}/{rounds}, {name}: {measured[name][-1]}", flush=True)
    return measured


def write_results(name: str, bars: Sequence[Bar], command: str) -> None:
    """Print the table and write `results/NAME.json`."""
    print_table(name, bars)
    body = {"benchmark": name, "command": command, **circumstances()}
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    body["bars"] = [asdict(bar) for bar in bars]
    path.write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {path.relative_to(ROOT)}")


def print_table(name: str, bars: Sequence[Bar]) -> None:
    print(f"\n{name}")
    for bar in bars:
        value, verdict = told(bar)
        wanted = "" if bar.bar is None else f"bar {bar.bar:g}"
        print(f"  {bar.name:48} {value:>22}  {wanted:>10}  {verdict:8} {bar.note}".rstrip())


def told(bar: Bar) -> tuple[str, str]:
    """Value and verdict in words."""
    value = "not measured" if bar.value is None else f"{bar.value:,.4g} {bar.unit}"
    return value, {True: "met", False: "NOT MET", None: ""}[bar.met]


def markdown(bars: Sequence[Bar]) -> str:
    """The same table for a document."""
    lines = ["| what | figure | bar | met | |", "|---|---|---|---|---|"]
    for bar in bars:
        value, verdict = told(bar)
        wanted = "" if bar.bar is None else f"{bar.bar:g} {bar.unit}".strip()
        cells = (bar.name, value, wanted, verdict, bar.note)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def block(path: Path, name: str) -> str:
    """What a document has between `<!-- NAME -->` and `<!-- end of NAME -->`, which a command
    writes. ValueError if it has no such lines.
    """
    _, begun, rest = path.read_text().partition(f"<!-- {name} -->\n")
    inner, ended, _ = rest.partition(f"<!-- end of {name} -->")
    if not (begun and ended):
        raise ValueError(f"{path}: no lines <!-- {name} --> and <!-- end of {name} --> in it")
    return inner


def rewrite_block(path: Path, name: str, text: str) -> None:
    """Put another text there; ValueError as for `block`."""
    before = f"<!-- {name} -->\n{block(path, name)}"
    path.write_text(path.read_text().replace(before, f"<!-- {name} -->\n{text.strip()}\n"))
    print(f"written to {path.relative_to(ROOT)}")


def page(
    title: str, command: str, sections: Mapping[str, tuple[str, Sequence[Bar]]], left: str
) -> str:
    """Markdown: a section of each heading with its circumstances and its table; `left` names what
    was not measured.
    """
    lines = [f"# {title}", "", f"Made by `{command}`; docs/performance.md explains.", ""]
    for heading, (where, bars) in sections.items():
        lines += [f"## {heading}", where, "", markdown(bars), ""]
    return "\n".join([*lines, *([left, ""] if left else [])])


def circumstances() -> dict[str, object]:
    """When, from which source, on what and with what something was measured."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "device": _device(),
        "versions": _versions(),
    }


def _commit() -> str:
    ended = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ended.stdout.strip() or "unknown"


def _device() -> dict[str, object]:
    from longhaul.core.machine import machine

    facts = machine()
    return {key: facts[key] for key in ("cpu", "usable_cores", "memory_bytes")} | {
        "load_at_end": os.getloadavg()[0]
    }


def _versions() -> dict[str, str]:
    import longhaul

    return {
        "longhaul": longhaul.__version__,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
    }
