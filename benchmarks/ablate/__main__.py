"""Trains a recipe with one idea off at a time, and prints what each is worth.

    python -m benchmarks.ablate [--recipe speedrun-124m] [--text tinyshakespeare.txt] [--seeds 5]
                                [--steps N] [--only QK,Muon] [--minutes 8] [--again] [--table]

Each idea is off in as many runs as there are seeds, each beside the whole recipe's run of the same
seed; ideas that the recipe does without are switched on instead, which tells why it does. Every run
is kept in `results/ablate-RECIPE.json` as soon as it ends, and is read by the next start, not
trained again: with `--minutes` no run is begun that would not end by then, and the same command
goes on. `--table` trains nothing and writes the tables of `docs/speedrun.md` from that file.

`speedrun-124m` needs a GPU, one run at a time, and takes the text of `benchmarks.gpu`; what a step
takes is read from the same runs. `speedrun-shakespeare` takes one core a run, `--jobs` at a time,
and its steps are compared in pairs of short runs, side by side.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.ablate.ideas import STUDIES, Settings, Study
from benchmarks.ablate.training import NO_TIME, Results, Trainings, base_of, fingerprint
from benchmarks.ablate.worth import SHARES, findings, rows, table
from benchmarks.common import RESULTS, ROOT, Bar, print_table, rewrite_block
from benchmarks.gpu.__main__ import gpu
from benchmarks.gpu.setting import NotMeasured, Setting

from longhaul.config.load import load_recipe
from longhaul.core.errors import UsageError
from longhaul.core.machine import machine

DOLLARS_PER_HOUR = {"H200": 3.59, "H100": 2.69, "A100": 1.19}
"""One GPU on demand at RunPod: H100 SXM as spheron.network listed it in May 2026, H200 and A100 as
deploybase.ai did in October 2025."""
_OF_A_CPU = 0.1
_SEEDS_OF_LENGTHS = 2
_WEEK = 7 * 24 * 60.0
DOCUMENT = ROOT / "docs" / "speedrun.md"


def main() -> None:
    given = arguments()
    study = STUDIES[given.recipe]
    path = given.results / f"ablate-{given.recipe}{'-tiny' if given.tiny else ''}.json"
    if given.table:
        if not path.is_file():
            sys.exit(f"{path}: no such file; the same command without --table makes it")
        rewrite_block(DOCUMENT, f"ablate {given.recipe}", stored_table(path, study))
        return
    on = "a CPU, tiny" if given.tiny else gpu() if study.on_gpu else str(machine()["cpu"])
    if on is None:
        sys.exit("no CUDA device answers here; --tiny trains a small twin on the CPU")
    with tempfile.TemporaryDirectory(prefix="ablate-") as room:
        limit_s = 60 * given.minutes
        setting = Setting(given.tiny, Path(room), given.prepared, limit_s=limit_s)
        results = opened(given, study, setting, path, on)
        trainings = Trainings(study, setting, given.text, given.jobs)
        left = measure(given, study, trainings, results)
    report(study, results)
    print(f"written to {path}")
    if left:
        print(f"not measured yet: {', '.join(left)}; the same command goes on")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ablate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--recipe", choices=STUDIES, default="speedrun-shakespeare")
    parser.add_argument("--text", type=Path, help="tiny Shakespeare")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each kind")
    parser.add_argument("--steps", type=int, help="length of the whole recipe in all runs")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time on a CPU")
    parser.add_argument("--only", default="", help="ideas whose names begin like one of these")
    parser.add_argument("--minutes", type=float, default=_WEEK, help="then stop")
    parser.add_argument("--dollars-per-hour", type=float, help="of the device")
    parser.add_argument("--again", action="store_true", help="train anew what is there")
    parser.add_argument("--table", action="store_true", help="write the document's table, no more")
    parser.add_argument("--tiny", action="store_true", help="a small twin on a CPU: no figures")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where runs are kept")
    parser.add_argument("--prepared", type=Path, default=ROOT / "prepared", help="prepared text")
    given = parser.parse_args()
    study = STUDIES[given.recipe]
    if given.seeds < 2:
        parser.error(f"--seeds {given.seeds}: a test needs two at least")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: one at least")
    if study.on_gpu or given.tiny:
        given.jobs = given.jobs if given.tiny else 1
        given.text = None
    elif not given.table and (given.text is None or not given.text.is_file()):
        parser.error(f"--text {given.text}: {given.recipe} needs a file of text")
    if not chosen(given.only, study):
        names = ", ".join((*study.without, *study.added))
        parser.error(f"--only {given.only}: no idea of that name (there are: {names})")
    given.text = given.text and given.text.resolve()
    given.results, given.prepared = given.results.resolve(), given.prepared.resolve()
    return given


def chosen(only: str, study: Study) -> dict[str, Settings]:
    """Ideas to measure now."""
    every = {**study.without, **study.added}
    return {idea: each for idea, each in every.items() if idea.startswith(tuple(only.split(",")))}


def opened(
    given: argparse.Namespace, study: Study, setting: Setting, path: Path, on: str
) -> Results:
    """What is there already, if it was measured in the same way."""
    price = given.dollars_per_hour or price_of(on, study, given.tiny)
    base = base_of(study, setting)
    own = load_recipe(given.recipe, base).recipe.total_steps()
    # A path says nothing elsewhere.
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    options = "".join(f" {word}" for word in words if word != "--again")
    facts = {
        "benchmark": path.stem, "command": f"python -m benchmarks.ablate{options}", "on": on,
        "steps": given.steps or study.steps or own, "base": fingerprint(base, given.recipe),
        "dollars_per_hour": price, "bars": [],
    }  # fmt: skip
    try:
        return Results(path, facts, anew=given.again)
    except UsageError as error:
        sys.exit(str(error))


def price_of(on: str, study: Study, tiny: bool) -> float:
    """Dollars an hour of the device."""
    if tiny or not study.on_gpu:
        return _OF_A_CPU
    for name, dollars in DOLLARS_PER_HOUR.items():
        if name in on:
            return dollars
    sys.exit(f"{on}: its price is not known here; give --dollars-per-hour")


def measure(
    given: argparse.Namespace, study: Study, trainings: Trainings, results: Results
) -> list[str]:
    """Train what is missing, the whole recipe first; what is left, because time is over."""
    seeds, steps = list(range(1, given.seeds + 1)), int(results.fact("steps"))
    shares = SHARES[-1:] if given.tiny else SHARES
    wanted: list[tuple[str, Settings, list[int], int]] = [("the whole recipe", (), seeds, steps)]
    wanted += [
        (f"the whole recipe at {share:g} of its length", (), seeds[:_SEEDS_OF_LENGTHS],
         max(1, round(steps * share)))
        for share in shares
    ]  # fmt: skip
    wanted += [(idea, own, seeds, steps) for idea, own in chosen(given.only, study).items()]
    left = []
    for name, settings, those, length in wanted:
        missing = [seed for seed in those if seed not in results.of(settings, length)]
        pairs = bool(settings) and not study.on_gpu and settings not in results.paces
        try:
            for run in trainings.runs(settings, missing, length):
                results.add(run)
                print(f"  {name}, seed {run.seed}: {run.loss:.4f}, {run.seconds:.2f} s", flush=True)
            if pairs:
                results.paces[settings] = trainings.pace(settings, steps)
        except NotMeasured as why:
            if str(why) != NO_TIME:
                print(f"  {name}: {why}", flush=True)
            left.append(name)
    return left


def report(study: Study, results: Results) -> None:
    """Print what the runs so far say, and keep it beside them."""
    price, steps = float(results.fact("dollars_per_hour")), int(results.fact("steps"))
    found = findings(study, results, steps)
    bars: list[Bar] = [] if found is None else rows(found, price)
    results.write(bars)
    print_table(study.recipe, bars)
    if found is not None:
        print(f"\n{table(found, price)}")


def stored_table(path: Path, study: Study) -> str:
    """The document's, with where and when it was measured."""
    results = Results.read(path)
    found = findings(study, results, int(results.fact("steps")))
    if found is None:
        sys.exit(f"{path}: fewer than two runs of the whole recipe; measure on")
    price = float(results.fact("dollars_per_hour"))
    told = results.fact
    return (
        f"{table(found, price)}\n\nOn {told('date')[:10]}, {told('on')}, torch "
        f"{told('versions')['torch']}, commit {told('commit')}, {told('steps')} steps; the whole "
        f"recipe's loss is {found.loss:.4f}, the mean of {found.seeds} seeds, after "
        f"{found.seconds:.1f} s of training, at {price:.2f} dollars an hour. Made by\n"
        f"`{told('command')}`."
    )


if __name__ == "__main__":
    main()
