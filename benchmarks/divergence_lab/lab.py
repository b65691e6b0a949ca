"""The command: make the runs, judge them, compare with the truth, write it down.

Enters: options. Leaves: tables, `results/divergence_lab.json`, and with `--store` the traces that
tests replay. Never knows: how any of it is done.
"""

import argparse
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import Bar, at_least, at_most, figure, write_results
from benchmarks.divergence_lab import tables, traces
from benchmarks.divergence_lab.causes import caused
from benchmarks.divergence_lab.generate import Made, make_all
from benchmarks.divergence_lab.runs import Run, catalogue, healthy
from benchmarks.divergence_lab.score import Judged, Score, lead_of, score, slow_kinds
from benchmarks.divergence_lab.split import part_of
from benchmarks.divergence_lab.truth import Truth

from longhaul.config.diagnose import DiagnoseSection
from longhaul.diagnose.diagnosis import Diagnosis

HERE = Path(__file__).parent
HOME = HERE.parents[1] / "prepared" / "divergence_lab"
STORE = HERE / "traces"
RECALL_BAR = 0.95
FALSE_ALARM_BAR = 1.0
LEAD_BAR_STEPS = 50.0
LEAD_BAR_SHARE = 0.10
COMMAND = "python -m benchmarks.divergence_lab"


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--markdown", action="store_true", help="print tables for docs/measurements/judgement.md"
    )
    parser.add_argument("--quick", action="store_true", help="judge the stored traces only")
    parser.add_argument("--store", action="store_true", help="keep the traces in the repository")
    parser.add_argument("--part", choices=("tuning",), help="tables of the tuning runs instead")
    parser.add_argument("--home", type=Path, default=HOME, help="prepared text and made runs")
    given = parser.parse_args()
    made = stored() if given.quick else fresh(given.home, given.processes)
    if given.store:
        store(made)
    judged = judge(made)
    if given.part:
        show({given.part: of_part(judged, given.part)}, given.markdown)
        return
    show({"held-out": of_part(judged, "held-out"), "unseen": of_part(judged, "unseen")},
         given.markdown)  # fmt: skip
    if not given.quick:
        write_results("divergence_lab", bars(judged), COMMAND)


def fresh(home: Path, processes: int, runs: Sequence[Run] | None = None) -> list[Made]:
    """Every run of the catalogue, or these; those that were made before are read."""
    runs = list(catalogue()) if runs is None else runs
    (home / "traces").mkdir(parents=True, exist_ok=True)
    made = {}
    for number, done in enumerate(make_all(runs, home, processes), start=1):
        made[done.name] = done
        print(f"  {number}/{len(runs)} {done.name}: {done.truth.outcome}", flush=True)
    return [made[run.name] for run in runs]


def judge(made: Sequence[Made]) -> list[Judged]:
    """Findings of the shipped limits, in every run."""
    judged = []
    for one in made:
        diagnosis = Diagnosis(DiagnoseSection(), len(one.steps), clips=_clips(one.name))
        findings = (f for record in one.trace for f in diagnosis.observe(record))
        judged.append(Judged(one, tuple(findings)))
    return judged


def _clips(name: str) -> bool:
    """Whether the run of this name clips gradients."""
    mechanism, number = name.split("/")
    run = healthy(int(number)) if mechanism == "healthy" else caused(mechanism, int(number))
    return bool(run.settings["optim.clip"] > 0)


def of_part(judged: Sequence[Judged], part: str) -> list[Judged]:
    return [j for j in judged if part_of(j.made.name) == part]


def show(parts: dict[str, list[Judged]], markdown: bool) -> None:
    """Print every table."""
    together = [j for judged in parts.values() for j in judged]
    seen = next(iter(parts.values()))
    for title, rows in (
        ("In all", tables.overall(dict(parts))),
        ("By way to go wrong", tables.by_mechanism(together)),
        ("By detector", tables.by_detector(seen)),
        ("Healthy runs", tables.by_disturbance(seen)),
    ):
        print(f"\n{'### ' if markdown else ''}{title}\n")
        print(tables.as_text(rows, markdown))
    print(f"\n{tables.relabelled(together)}\n")


def bars(judged: Sequence[Judged]) -> list[Bar]:
    """The figures that are held against bars, on held-out runs."""
    held_out, unseen = of_part(judged, "held-out"), of_part(judged, "unseen")
    figures, apart = score(held_out), score(unseen)
    slow = slow_kinds(held_out)
    steps, share = lead_of(slow), lead_of(slow, as_share=True)
    long_enough = steps.value >= LEAD_BAR_STEPS or share.value >= LEAD_BAR_SHARE
    every = [j for j in judged if j.made.truth.harmed]
    ways = {j.made.mechanism for j in every if j.made.mechanism != "healthy"}
    healthy = sum(j.made.mechanism == "healthy" and j.made.truth.healthy for j in judged)
    return [
        at_least("runs that came to harm", len(every), "runs", 150),
        at_least("ways to come to harm", len(ways), "ways", 9),
        at_least("healthy runs", healthy, "runs", 100),
        at_least("held-out runs that came to harm", figures.harmed, "runs", 60),
        at_least("held-out healthy steps", figures.healthy_steps, "steps", 30_000),
        at_least("recall", figures.recall.value, "", RECALL_BAR, interval(figures, "recall")),
        figure("recall of kind", figures.recall_of_kind.value, "",
               interval(figures, "recall_of_kind")),
        figure("precision of alarms", figures.precision.value, "",
               interval(figures, "precision")),
        at_most("false alarms per 10,000 healthy steps", figures.false_alarms.value, "",
                FALSE_ALARM_BAR, interval(figures, "false_alarms")),
        Bar("median lead of slowly growing kinds", steps.value, "steps", LEAD_BAR_STEPS,
            long_enough, f"{steps:.0f} steps, {share:.2f} of the run, over {steps.of} runs; "
            f"or {LEAD_BAR_SHARE:g} of the run"),
        figure("unseen mechanism: recall", apart.recall.value, "", interval(apart, "recall")),
        figure("unseen mechanism: median lead", apart.lead.value, "steps",
               format(apart.lead, ".0f")),
    ]  # fmt: skip


def interval(figures: Score, name: str) -> str:
    """A figure's interval in words."""
    interval = getattr(figures, name)
    return f"95 % interval {interval.low:.3g} to {interval.high:.3g}, of {interval.of:,}"


def store(made: Sequence[Made], name: str = "") -> None:
    """Keep traces and truths in the repository, of a set with a name of its own or of the first."""
    traces.write(_traces(name), {m.name: m.trace for m in made})
    truths = {m.name: {"harmless": m.harmless, **asdict(m.truth)} for m in made}
    _truths(name).write_text(json.dumps(truths, indent=0, sort_keys=True) + "\n")
    size = sum(path.stat().st_size for path in STORE.iterdir())
    print(f"{len(made)} traces kept in {STORE.name}/, {size / 1e6:.1f} MB")


def stored_names() -> list[str]:
    """Runs that are kept in the repository."""
    return list(json.loads(_truths().read_text()))


def _traces(name: str = "") -> Path:
    return STORE / f"{name or 'traces'}.parquet"


def _truths(name: str = "") -> Path:
    return STORE / (f"{name}-truths.json" if name else "truths.json")


def stored(names: Collection[str] | None = None, name: str = "") -> list[Made]:
    """Runs that are kept in the repository, with their truths."""
    truths: dict[str, dict[str, Any]] = json.loads(_truths(name).read_text())
    made = []
    for run, trace in traces.read(_traces(name), names).items():
        facts = truths[run]
        harmless = tuple(facts.pop("harmless"))
        made.append(Made(run, run.split("/")[0], harmless, Truth(**facts), trace))
    return made
