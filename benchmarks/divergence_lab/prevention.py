"""Would the switches of `yalm-stable` have kept a run from harm, and what do they cost.

    python -m benchmarks.divergence_lab.prevention [--sample 30] [--made-only] [--no-costs]

Every recipe of the lab that came to harm by its numbers is trained again, with none of the
switches and with all of them; the first so many of each way to go wrong (`--sample`) also with one
switch off at a time. Each is trained beside its own undisturbed twin and judged as in `truth.py`.
Float32 islands mean something only in half weights: with all other switches on they are tried in
bfloat16 weights, on and off. Two cures that `yalm-stable` leaves out (QK-norm and z-loss, arXiv
2309.14322) are added to all switches, one at a time.

Every run is kept under `--home`, so a study that was broken off goes on. The sample is made first,
recipe by recipe in all forms: stopped early, a smaller `--sample` finds its table complete, and
`--made-only` gives the tables of what is there.

Enters: the lab's recipes and the stored truth about them. Leaves: tables and
`results/divergence_prevention.json`. Never knows: findings.
"""

import argparse
import json
import multiprocessing
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

from benchmarks.common import Bar, figure, write_results
from benchmarks.divergence_lab import switch_costs, tables
from benchmarks.divergence_lab.causes import CAUSES
from benchmarks.divergence_lab.generate import make
from benchmarks.divergence_lab.lab import HOME, STORE
from benchmarks.divergence_lab.runs import Run, catalogue
from benchmarks.divergence_lab.score import Interval, wilson
from benchmarks.divergence_lab.switches import (
    ALL,
    AS_IT_WAS,
    HALF_WITH,
    HALF_WITHOUT,
    NONE,
    WHOLE_FORMS,
    forms,
    in_form,
)
from benchmarks.divergence_lab.truth import HARMED, Outcome, Truth

COMMAND = "python -m benchmarks.divergence_lab.prevention"
NOT_BY_NUMBERS = ("frozen-group", "escape-leak", "lr-too-low")
"""No stabiliser is meant against these."""
RECIPES_BELOW = 214
"""Those numbered from here on were added to tune detectors, many at the border of harm; this study
is not made longer for them."""
_SAMPLE = 30
"""As many as the largest way has: all."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """What became of a recipe in one form."""

    recipe: str
    mechanism: str
    form: str
    outcome: Outcome | None
    """None: not even its undisturbed twin is sound in this form, so there is nothing to compare
    with."""

    @property
    def judged(self) -> bool:
        return self.outcome is not None

    @property
    def harmed(self) -> bool:
        return self.outcome in HARMED

    @property
    def diverged(self) -> bool:
        """It ends high or not finite; other harm is a spike that it came back from, or a stall."""
        return self.outcome in ("diverged", "non-finite")


def stored_truths() -> dict[str, Truth]:
    """What became of each recipe as it was, as kept in the repository."""
    kept = json.loads((STORE / "truths.json").read_text())
    for facts in kept.values():
        del facts["harmless"]
    return {name: Truth(**facts) for name, facts in kept.items()}


def chosen(runs: Sequence[Run], truths: Mapping[str, Truth]) -> list[Run]:
    """Recipes that came to harm by their numbers, one of each way to go wrong after the other."""
    by_way = [
        [
            r for r in runs
            if r.mechanism == mechanism
            and int(r.name.split("/")[1]) < RECIPES_BELOW
            and truths[r.name].harmed
        ]
        for mechanism in CAUSES
        if mechanism not in NOT_BY_NUMBERS
    ]  # fmt: skip
    return [r for rank in zip_longest(*by_way) for r in rank if r is not None]


def sampled(runs: Sequence[Run], most: int) -> list[Run]:
    """The first so many of each way to go wrong."""
    taken: dict[str, list[Run]] = {}
    for run in runs:
        of_way = taken.setdefault(run.mechanism, [])
        if len(of_way) < most:
            of_way.append(run)
    return [r for r in runs if r in taken[r.mechanism]]


def planned(runs: Sequence[Run], sample: Sequence[Run]) -> list[tuple[Run, str]]:
    """What to train, the sample first, each recipe of it in every form before the next."""
    anew = [name for name in forms() if name != AS_IT_WAS]
    plan = [
        (run, name) for run in sample for name in anew
        # What emulates fp16 means nothing in bfloat16 weights.
        if run.half_shift is None or name not in (HALF_WITH, HALF_WITHOUT)
    ]  # fmt: skip
    names = {run.name for run in sample}
    return plan + [(run, name) for name in (ALL, NONE) for run in runs if run.name not in names]


def rerun(job: tuple[Run, str], home: Path) -> Rerun:
    """Train a recipe in a form, or read what was trained before."""
    run, form = job
    changed = in_form(run, form, forms()[form])
    # Judged as its own twin, the twin is sound or not.
    sound = make(changed.undisturbed(), home).truth.healthy
    outcome = make(changed, home).truth.outcome if sound else None
    return Rerun(run.name, run.mechanism, form, outcome)


def rerun_all(plan: Sequence[tuple[Run, str]], home: Path, processes: int) -> Iterator[Rerun]:
    """Train all, in the order of the plan, over several processes of one thread each."""
    (home / "traces").mkdir(parents=True, exist_ok=True)
    if processes == 1:
        yield from (rerun(job, home) for job in plan)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(partial(rerun, home=home), plan)


def is_made(job: tuple[Run, str], home: Path) -> bool:
    """It was trained before, or its twin was and is not sound."""
    run, form = job
    changed = in_form(run, form, forms()[form])
    twin = changed.undisturbed()
    has_run, has_twin = (
        (home / "traces" / f"{of.key()}.parquet").exists() for of in (changed, twin)
    )
    return has_twin and (has_run or not make(twin, home).truth.healthy)


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--sample", type=int, default=_SAMPLE,
        help="recipes of each way to go wrong that are tried with one switch off at a time",
    )  # fmt: skip
    parser.add_argument("--made-only", action="store_true", help="train nothing")
    parser.add_argument("--no-costs", action="store_true", help="do not time the switches")
    parser.add_argument(
        "--markdown", action="store_true", help="print tables for docs/measurements/judgement.md"
    )
    parser.add_argument("--home", type=Path, default=HOME, help="prepared text and trained runs")
    given = parser.parse_args()
    truths = stored_truths()
    runs = chosen([run for run in catalogue() if run.name in truths], truths)
    sample = sampled(runs, given.sample)
    plan = planned(runs, sample)
    if given.made_only:
        plan, wanted = [job for job in plan if is_made(job, given.home)], plan
        missing = {run.name for run, form in wanted if (run, form) not in plan}
        # A recipe that lacks a form would make forms differ in what they are of.
        sample = [run for run in sample if run.name not in missing]
    reruns = [Rerun(r.name, r.mechanism, AS_IT_WAS, truths[r.name].outcome) for r in runs]
    for number, done in enumerate(rerun_all(plan, given.home, given.processes), start=1):
        print(f"  {number}/{len(plan)} {done.recipe}, {done.form}: "
              f"{done.outcome or 'its twin is not sound'}", flush=True)  # fmt: skip
        reruns.append(done)
    costs = [] if given.no_costs else switch_costs.measure()
    names = {run.name for run in sample}
    show(reruns, names, given.markdown)
    if costs:
        print("\n" + tables.as_text(switch_costs.table(costs), given.markdown))
    write_results("divergence_prevention", bars(reruns, names) + switch_costs.bars(costs), COMMAND)


def show(reruns: Sequence[Rerun], sample: Collection[str], markdown: bool) -> None:
    """Print the tables, each with what it is of."""
    recipes = len({r.recipe for r in reruns})
    print(f"\nAll {recipes} recipes that came to harm: how many do again, of those that can be "
          "judged\n")  # fmt: skip
    print(tables.as_text(by_way(reruns), markdown))
    whole = len(sample) == recipes
    which = (
        "All of them"
        if whole
        else f"A sample of {len(sample)} of them, the first of each way to go wrong"
    )
    print(f"\n{which}, the same in every form (but what emulates float16 is not tried in bfloat16 "
          "weights)\n")  # fmt: skip
    print(tables.as_text(by_form([r for r in reruns if r.recipe in sample]), markdown))


def by_way(reruns: Sequence[Rerun]) -> tables.Rows:
    """All recipes in the forms that all are tried in: a row a way to go wrong."""
    ways = [m for m in CAUSES if m not in NOT_BY_NUMBERS]
    rows: tables.Rows = [("way to go wrong", *WHOLE_FORMS)]
    for way in ways:
        mine = [r for r in reruns if r.mechanism == way]
        counts = (_share(_of(mine, form)) for form in WHOLE_FORMS)
        rows.append((CAUSES[way].says, *(f"{round(s.value * s.of)}/{s.of}" if s.of else "–"
                                         for s in counts)))  # fmt: skip
    rows.append(("in all", *(format(_share(_of(reruns, form)), ".2f") for form in WHOLE_FORMS)))
    diverged = (_share(_of(reruns, form), only_diverged=True) for form in WHOLE_FORMS)
    rows.append(("diverged or not finite", *(format(share, ".2f") for share in diverged)))
    unjudged = (sum(not r.judged for r in _of(reruns, form)) for form in WHOLE_FORMS)
    rows.append(("twin not sound, left out", *(str(count) for count in unjudged)))
    return rows


def by_form(reruns: Sequence[Rerun]) -> tables.Rows:
    """The sample: a row a form, each recipe compared with itself in all switches."""
    rows: tables.Rows = [("switches", "come to harm", "diverged or not finite",
                          "harmed here, not with all", "the reverse",
                          "twin not sound")]  # fmt: skip
    with_all = {r.recipe: r for r in _of(reruns, ALL)}
    for form in forms():
        mine = _of(reruns, form)
        pairs = [(r, with_all[r.recipe]) for r in mine if r.judged and with_all[r.recipe].judged]
        rows.append((
            form,
            format(_share(mine), ".2f"),
            format(_share(mine, only_diverged=True), ".2f"),
            str(sum(here.harmed and not there.harmed for here, there in pairs)),
            str(sum(there.harmed and not here.harmed for here, there in pairs)),
            str(sum(not r.judged for r in mine)),
        ))  # fmt: skip
    return rows


def bars(reruns: Sequence[Rerun], sample: Collection[str]) -> list[Bar]:
    """Shares that come to harm: of all recipes, then of the sample."""
    found = []
    for form in forms():
        mine = _of(reruns, form)
        if form in WHOLE_FORMS:
            found.append(_bar(f"share of all recipes that comes to harm: {form}", mine))
        of_sample = [r for r in mine if r.recipe in sample]
        found.append(_bar(f"share of the sample that comes to harm: {form}", of_sample))
    return found


def _bar(name: str, reruns: Sequence[Rerun]) -> Bar:
    share = _share(reruns)
    return figure(name, share.value, "", f"{share:.2f}, of {share.of}")


def _of(reruns: Sequence[Rerun], form: str) -> list[Rerun]:
    return [r for r in reruns if r.form == form]


def _share(reruns: Sequence[Rerun], only_diverged: bool = False) -> Interval:
    judged = [r for r in reruns if r.judged]
    return wilson(sum(r.diverged if only_diverged else r.harmed for r in judged), len(judged))


if __name__ == "__main__":
    main()
