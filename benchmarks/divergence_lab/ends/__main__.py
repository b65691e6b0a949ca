"""`python -m benchmarks.divergence_lab.ends`: train the cases, compare their ends, write it down.

Enters: options. Leaves: tables, and `results/divergence_ends.json`. Never knows: how it is done.

Ends that are stored under a label (`before`, `after`) print without training: `--show LABEL`.
"""

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.common import Bar, at_most, missing, write_results
from benchmarks.divergence_lab.ends.calm import calm, calm_on_traces
from benchmarks.divergence_lab.ends.cases import PARTS, Case, Part, catalogue
from benchmarks.divergence_lab.ends.drive import FORMS
from benchmarks.divergence_lab.ends.make import Ends, make_all, store, stored, together
from benchmarks.divergence_lab.ends.score import (
    NEEDLESS_BAR,
    bars,
    before_and_after,
    compared,
    table,
)
from benchmarks.divergence_lab.other import missing_text
from benchmarks.divergence_lab.tables import as_text

HERE = Path(__file__).parent
HOME = HERE.parents[2] / "prepared" / "divergence_lab" / "ends"
STORE = HERE.parent / "traces"
COMMAND = "python -m benchmarks.divergence_lab.ends"


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--part", choices=PARTS, default="tuning")
    parser.add_argument("--quick", action="store_true", help="one case of each way")
    parser.add_argument("--only", default="", help="cases whose names begin like this, or this")
    parser.add_argument("--forms", default=",".join(FORMS), help="train only these of a case")
    parser.add_argument("--store", metavar="LABEL", help="keep the ends in the repository")
    parser.add_argument("--show", metavar="LABEL", help="print stored ends, train nothing")
    parser.add_argument("--against", metavar="LABEL", help="compare with stored ends")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--cases", action="store_true", help="a line for each case as well")
    parser.add_argument("--results", action="store_true", help="write results from stored ends")
    given = parser.parse_args()
    part: Part = given.part
    if given.results:
        write_results("divergence_ends", _all_bars(), f"{COMMAND} --results")
        return
    if part == "held-out" and not given.show and (why := missing_text()):
        sys.exit(f"the held-out part needs text that is not here: {why}")
    if given.show:
        ends = stored(_store(given.show, part))
    else:
        only = tuple(given.only.split(","))
        cases = [c for c in catalogue(part, given.quick) if c.run.name.startswith(only)]
        ends = _made(cases, given.processes, given.forms.split(","))
    if given.store:
        store(_store(given.store, part), ends)
    if "policy" not in given.forms:
        return
    _print(ends, part, given.markdown, given.cases)
    if given.against:
        before = stored(_store(given.against, part))
        print(as_text(before_and_after(compared(before), compared(ends)), given.markdown))


def _made(cases: Sequence[Case], processes: int, forms: Collection[str]) -> Ends:
    made = []
    for number, end in enumerate(make_all(cases, HOME, processes, forms), start=1):
        made.append(end)
        loss = f"{end.loss:.4f}" if end.loss is not None else f"exit {end.code}: {end.why}"
        print(f"  {number} {end.name} {end.form}: {loss}, {len(end.actions)} actions", flush=True)
    return together(made)


def _store(label: str, part: Part) -> Path:
    return STORE / f"ends-{label}-{part}.jsonl"


def _print(ends: Ends, part: Part, markdown: bool, each: bool) -> None:
    cases, quiet = compared(ends), calm(ends)
    print(f"\n{'### ' if markdown else ''}How runs end, {part}\n")
    print(as_text(table(cases), markdown))
    print(
        f"\n{quiet.actions} needless actions in {quiet.steps:,} healthy steps: "
        f"{quiet.per_10_000:.2f} per 10,000\n"
    )
    if each:
        for c in cases:
            done = "; ".join(
                f"{a.step} {a.cause}: {'+'.join(a.actions)}"
                + (f" → {a.to}" if a.to is not None else "")
                for a in c.policy.actions
            )
            mark = "WORSE " if c.worse else ""
            print(f"{c.case.run.name}: {mark}{c.left:.3f} → {c.end:.3f}, {c.policy.again} steps "
                  f"again, onset {c.case.onset} of {c.policy.total}: {done or '–'}"
                  f"{' EXIT ' + c.policy.why if c.stopped else ''}")  # fmt: skip
        for name, forms in ends.items():
            if name.startswith("healthy") and forms["policy"].actions:
                print(name, [(a.step, a.cause, a.actions) for a in forms["policy"].actions])


def _all_bars() -> list[Bar]:
    """Of every stored part; the newest policy last."""
    quiet = calm_on_traces()
    found = [
        at_most("stored healthy traces, judged again: needless actions per 10,000 steps",
                quiet.per_10_000, "", NEEDLESS_BAR, f"{quiet.actions} in {quiet.steps:,}")
    ]  # fmt: skip
    for part in PARTS:
        for label in ("before", "after"):
            path = _store(label, part)
            says = f"{part}, {label}"
            if path.exists():
                found += bars(stored(path), says)
            else:
                found.append(missing(f"{says}: median end", "not trained yet"))
    return found


if __name__ == "__main__":
    main()
