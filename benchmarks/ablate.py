"""What each idea of a speedrun buys: the recipe is trained with one idea off at a time.

    python -m benchmarks.ablate --text tinyshakespeare.txt [--seeds 6] [--jobs 2] [--only QK,Muon]

Each idea is off in as many runs as there are seeds, each beside the whole recipe's run of the same
seed; the difference of their validation losses has a paired t-test, and counts where p < 0.01.
Where it does, the run without the idea is made longer until it reaches the loss of the whole
recipe: the tokens and the seconds that it needs more, in shares of the whole recipe's, are its
worth. Dollars are seconds at a price an hour. An idea may cost time in each step: where it is worth
fewer seconds than tokens, it does. Runs have one thread; `--jobs` of them are made at a time.
Seconds are the processor's own, beyond those of a run of one step (start-up, last evaluation); what
a step takes is the journal's, in short runs with and without the idea, side by side (`--paces`: no
more than that).

Ideas that the recipe does without are switched on instead, which tells why it does.
"""

import argparse
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common import Bar, figure, missing, write_results

from longhaul.core.clocks import STEP_BUCKETS
from longhaul.core.records import StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal

RECIPE = "speedrun-shakespeare"
WITHOUT: dict[str, tuple[str, ...]] = {
    "table of character pairs": ("model.bigram_rows=0",),
    "rotary positions (learned instead)": ('model.positions="learned"',),
    "QK-norm": ("model.qk_norm=false",),
    "ReLU² (GELU instead)": ('model.activation="gelu"',),
    "zero-initialised projections": ("model.zero_projections=false",),
    "zero-initialised head": ("model.zero_head=false",),
    "norm of the embedding": ("model.embedding_norm=false",),
    "untied head": ("model.tied_head=true", "model.zero_head=false"),
    "wide first embeddings (GPT-2's 0.02 instead)": ("model.init_std=0.02",),
    "one wide block (four of half the width instead)": ("model.layers=4", "model.width=128"),
    "Muon (AdamW instead, its best of three rates)": (
        'optim.name="adamw"', "optim.lr=0.006", "optim.beta1=0.9", "optim.lr_factors.head=1.0",
        "optim.lr_factors.embedding=1.0",
    ),
    "Polar Express (five rounds of the quintic instead)": (
        'optim.muon.coefficients="quintic"', "optim.muon.newton_schulz_steps=5",
    ),
    "orthogonal queries, keys, values apart": ("optim.muon.separate_parts=false",),
    "warm-up of Muon's momentum": ("optim.muon.momentum_warmup_steps=0",),
    "own rates for head and tables": (
        "optim.lr_factors.head=1.0", "optim.lr_factors.embedding=1.0",
    ),
    "short memory of Adam": ("optim.beta1=0.9",),
    "cooldown (a constant rate instead)": ("optim.schedule.final_fraction=1.0",),
    "the fastest number format (float32 instead)": (
        'precision.compute="float32"', 'optim.muon.newton_schulz="float32"',
    ),
}  # fmt: skip
"""Idea → settings of the recipe without it."""
WITH: dict[str, tuple[str, ...]] = {
    "token smear": ("model.token_smear=true",),
    "two tokens ahead, for the first half": (
        "model.ahead_stages=[{ from_step = 0, weights = [0.5] },"
        " { from_step = 33, weights = [] }]",
    ),
    "soft cap of the logits": ("model.logit_softcap=15.0",),
    "cautious decay": ("optim.weight_decay=0.01", "optim.cautious_decay=true"),
}  # fmt: skip
"""Idea that the recipe does without → settings of the recipe with it."""
LONGER = (1.25, 1.6, 2.2, 3.0)
"""Lengths at which a run without an idea is tried, in lengths of the whole recipe, until it gets
there."""
_SEEDS_OF_LENGTHS = 2
_PAIRS_OF_PACE, _STEPS_OF_PACE = 3, 20
# Student's t, two-sided 99 %, by degrees of freedom: where p < 0.01 begins.
_T99 = [math.inf, 63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17]


@dataclass(frozen=True)
class Run:
    """One training run."""

    loss: float
    tokens: int
    seconds: float
    """Of the processor, beyond those of a run of one step: what else it does is left out."""
    step_s: float
    """Wall seconds of a step, the median."""

    def __str__(self) -> str:
        return f"{self.loss:.4f}, {self.seconds:.2f} s"


class Trainings:
    """Runs of the recipe on one text, each in a process of its own, so many at a time."""

    def __init__(self, text: Path, room: Path, jobs: int) -> None:
        self._text, self._room, self._numbers = text.resolve(), room, itertools.count()
        self._workers = ThreadPoolExecutor(jobs)
        self.idle_s = 0.0
        self.run((), seed=1, steps=1)  # prepares the text
        self.idle_s = self.run((), seed=1, steps=1).seconds

    def runs(self, settings: tuple[str, ...], seeds: Iterable[int], steps: int) -> list[Run]:
        """One run of each seed, in their order."""
        return list(self._workers.map(lambda seed: self.run(settings, seed, steps), seeds))

    def pace(self, settings: tuple[str, ...]) -> float:
        """Seconds of a step with these settings over those of the whole recipe."""
        ratios = []
        with ThreadPoolExecutor(2) as workers:
            for seed in range(1, _PAIRS_OF_PACE + 1):
                pair = [
                    workers.submit(self.run, some, seed, _STEPS_OF_PACE) for some in (settings, ())
                ]
                own, whole = (one.result().step_s for one in pair)
                ratios.append(own / whole)
        return statistics.median(ratios)

    def run(self, settings: tuple[str, ...], seed: int, steps: int) -> Run:
        """Train, and read the journal."""
        runs = f"runs-{next(self._numbers)}"
        command = [sys.executable, "-m", "longhaul", "train", RECIPE, "--data", str(self._text)]
        command += ["--runs-dir", runs, "--prepared-dir", "prepared"]
        for setting in (*settings, f"seed={seed}", f"train.steps={steps}", "machine.threads=1"):
            command += ["--set", setting]
        output = self._room / f"{runs}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(command, cwd=self._room, stdout=file, stderr=file)
            _, status, used = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"{' '.join(command)} failed:\n{output.read_text()[-2000:]}")
        folder = RunFolder(self._room / runs / RECIPE)
        made = [r for r in read_journal(folder, events=False) if isinstance(r, StepRecord)]
        finished = next(r for r in read_journal(folder, steps=False) if r.kind == "finished")
        tokens = sum(r.tokens for r in made)
        seconds = used.ru_utime + used.ru_stime - self.idle_s
        each = [sum(r.seconds.get(bucket, 0.0) for bucket in STEP_BUCKETS) for r in made]
        return Run(float(finished.data["loss"]), tokens, seconds, statistics.median(each))


@dataclass(frozen=True)
class Worth:
    """What an idea is worth."""

    loss: float
    """Nats that the loss is higher without it, at the same number of steps."""
    t: float
    """Of the paired test over seeds."""
    degrees: int
    pace: float
    """Seconds of a step without it, over those of the whole recipe."""
    tokens: float | None = None
    """Tokens needed without it, over those of the whole recipe; None: not reached, or of an idea
    that is not shown to be worth anything."""

    @property
    def seconds(self) -> float | None:
        """The same as `tokens`, of training."""
        return None if self.tokens is None else self.tokens * self.pace

    @property
    def is_winner(self) -> bool:
        """P < 0.01."""
        return self.t > _T99[min(self.degrees, len(_T99) - 1)]


def paired(before: dict[int, Run], after: dict[int, Run]) -> tuple[float, float]:
    """Nats that the loss is higher after than before, and t of the paired test over seeds."""
    more = [after[seed].loss - run.loss for seed, run in before.items()]
    spread = statistics.stdev(more) / math.sqrt(len(more)) or math.inf
    return statistics.fmean(more), statistics.fmean(more) / spread


def worth(
    trainings: Trainings, settings: tuple[str, ...], whole: dict[int, Run], steps: int
) -> Worth:
    """Train without an idea: as long as the whole recipe, then longer."""
    without = dict(zip(whole, trainings.runs(settings, whole, steps), strict=True))
    loss, t = paired(whole, without)
    found = Worth(loss, t, len(whole) - 1, trainings.pace(settings))
    if not found.is_winner:
        return found
    return replace(found, tokens=needed(trainings, settings, whole, without, steps))


def needed(
    trainings: Trainings,
    settings: tuple[str, ...],
    whole: dict[int, Run],
    without: dict[int, Run],
    steps: int,
) -> float | None:
    """Length at which the mean loss without the idea is that of the whole recipe, between the two
    lengths next to it by the logarithm of the length; over a few of the seeds.
    """
    few = list(whole)[:_SEEDS_OF_LENGTHS]
    aim = statistics.fmean(whole[seed].loss for seed in few)
    before, loss_before = 1.0, statistics.fmean(without[seed].loss for seed in few)
    if loss_before <= aim:
        return 1.0
    for length in LONGER:
        runs = trainings.runs(settings, few, round(steps * length))
        loss = statistics.fmean(run.loss for run in runs)
        if loss <= aim:
            share = (loss_before - aim) / (loss_before - loss)
            return before * (length / before) ** share
        before, loss_before = length, loss
    return None


def rows_of(idea: str, found: Worth, whole_s: float, price: float) -> list[Bar]:
    """Figures of one idea."""
    verdict = "p < 0.01" if found.is_winner else "not shown (p ≥ 0.01)"
    rows = [figure(f"{idea}: loss without it", found.loss, "nats", f"{verdict}, t {found.t:.1f}")]
    rows.append(figure(f"{idea}: seconds of a step without it", found.pace, "×"))
    if found.tokens is None or found.seconds is None:
        many = f"not there after {LONGER[-1]} times as many"
        return [*rows, missing(f"{idea}: tokens", many if found.is_winner else verdict)]
    saved = (found.seconds - 1) * whole_s
    return [
        *rows,
        figure(f"{idea}: tokens", found.tokens, "×"),
        figure(f"{idea}: seconds of training", found.seconds, "×", f"{saved:+.2f} s"),
        figure(f"{idea}: dollars", saved / 3600 * price, "$"),
    ]


def table(found: dict[str, Worth], whole_s: float, price: float) -> str:
    """Markdown, what costs most where it is missing first."""
    lines = [
        "| without | loss | p < 0.01 | seconds of a step | tokens to the same loss | seconds "
        "| dollars a 1,000 runs |",
        "|---|---|---|---|---|---|---|",
    ]
    by_worth = sorted(found.items(), key=lambda item: (not item[1].is_winner, -item[1].loss))
    for idea, one in by_worth:
        if one.tokens is None or one.seconds is None:
            more = f"over {LONGER[-1]:g} × | | |" if one.is_winner else "– | – | – |"
        else:
            dollars = (one.seconds - 1) * whole_s / 3600 * price * 1000
            more = f"{one.tokens:.2f} × | {one.seconds:.2f} × | {dollars:+.3f} |"
        shown = "yes" if one.is_winner else "no"
        lines.append(f"| {idea} | {one.loss:+.4f} | {shown} | {one.pace:.2f} × | {more}")
    return "\n".join(lines)


def table_of_others(found: dict[str, tuple[float, float, float]], degrees: int) -> str:
    """Markdown, the most helpful first: idea → what it adds to the loss, its t, and its pace."""
    lines = [
        "| with, which the recipe does without | loss | p < 0.01 | seconds of a step |",
        "|---|---|---|---|",
    ]
    bar = _T99[min(degrees, len(_T99) - 1)]
    for idea, (loss, t, slower) in sorted(found.items(), key=lambda item: item[1][0]):
        shown = "yes" if abs(t) > bar else "no"
        lines.append(f"| {idea} | {loss:+.4f} | {shown} | {slower:.2f} × |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="tiny Shakespeare")
    parser.add_argument("--seeds", type=int, default=6, help="runs of each kind")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, of one thread each")
    parser.add_argument("--only", default="", help="ideas whose names begin like one of these")
    parser.add_argument("--paces", action="store_true", help="compare what a step takes, no more")
    parser.add_argument("--price", type=float, default=0.1, help="dollars an hour of this machine")
    given = parser.parse_args()
    if not given.text.is_file():
        sys.exit(f"{given.text}: no such file")
    if given.jobs < 1:
        sys.exit(f"--jobs {given.jobs}: one at least")
    if given.seeds < 2:
        sys.exit(f"--seeds {given.seeds}: a test needs two at least")
    from longhaul.config.load import load_recipe

    steps = load_recipe(RECIPE).recipe.total_steps()
    chosen = tuple(given.only.split(","))
    ideas, others = (
        {idea: settings for idea, settings in every.items() if idea.startswith(chosen)}
        for every in (WITHOUT, WITH)
    )
    if not ideas and not others:
        names = ", ".join((*WITHOUT, *WITH))
        sys.exit(f"--only {given.only}: no idea of that name (there are: {names})")
    with tempfile.TemporaryDirectory(prefix="ablate-") as name:
        trainings = Trainings(given.text, Path(name), given.jobs)
        if given.paces:
            print("| with, or without | seconds of a step |\n|---|---|")
            for idea, settings in {"the same": (), **ideas, **others}.items():
                print(f"| {idea} | {trainings.pace(settings):.2f} × |", flush=True)
            return
        seeds = range(1, given.seeds + 1)
        whole = dict(zip(seeds, trainings.runs((), seeds, steps), strict=True))
        whole_s = statistics.median(run.seconds for run in whole.values())
        loss = statistics.fmean(run.loss for run in whole.values())
        print(f"whole recipe: loss {loss:.4f}, {whole_s:.2f} s of training", flush=True)
        found, rows = {}, [figure("whole recipe: loss", loss, "nats")]
        rows.append(figure("whole recipe: seconds of training", whole_s, "s"))
        for idea, off in ideas.items():
            found[idea] = worth(trainings, off, whole, steps)
            print(f"  without {idea}: {found[idea]}", flush=True)
            rows += rows_of(idea, found[idea], whole_s, given.price)
        added = {}
        for idea, on in others.items():
            made = dict(zip(seeds, trainings.runs(on, seeds, steps), strict=True))
            added[idea] = (*paired(whole, made), trainings.pace(on))
            loss, t, slower = added[idea]
            print(f"  with {idea}: {added[idea]}", flush=True)
            rows.append(figure(f"with {idea}: more loss", loss, "nats", f"t {t:.1f}"))
            rows.append(figure(f"with {idea}: seconds of a step", slower, "×"))
    print(table(found, whole_s, given.price))
    print()
    print(table_of_others(added, given.seeds - 1))
    if not given.only:
        write_results("ablate", rows, "python -m benchmarks.ablate " + " ".join(sys.argv[1:]))


if __name__ == "__main__":
    main()
