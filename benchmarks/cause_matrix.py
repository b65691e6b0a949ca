"""The confusion matrix of `longhaul diagnose`: injected causes against named ones.

    python -m benchmarks.cause_matrix [--seeds 2] [--only machine]

Each case is a small real run with one thing wrong in it: a faulty device, a wrong kernel, wrong
software, poisoned batches, a wrong setting, or nothing that a replay could find. The step asked
about is the first that stands out, or any if none does; a poisoned batch or a setting by which
nothing stands out is no case. The witness and the software before are
replayed by another process, which is told what to compute in, never what is wrong. The ladder is
told neither.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cause_worlds import Happening, World, living_in, poisoned, train
from benchmarks.common import at_least, figure, write_results

from longhaul.core.records import StepRecord
from longhaul.diagnose.cause import CAUSES, Cause
from longhaul.diagnose.signs import Figures, symptom_of
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.run.diagnose.bundle import Bundle, save_bundle
from longhaul.run.diagnose.cause import RemedyOptions, diagnose
from longhaul.run.diagnose.rerun import Elsewhere, Twice, read_figures

STEPS = 64
BLOCKS = 8
BASE = {
    "train.steps": STEPS, "batch.sequences": BLOCKS, "batch.sequence_length": 32,
    "batch.micro_sequences": BLOCKS, "batch.stages": "[]", "model.context": 32, "model.width": 32,
    "model.dropout": 0.0, "optim.schedule.warmup_steps": 8, "optim.lr": 3e-3,
    "evaluation.interval_steps": 0, "checkpoint.interval_steps": 16, "checkpoint.keep_last": 9,
    "data.sources": '[{ path = "synthetic" }]',
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A run with something wrong in it."""

    cause: Cause
    """The truth; only the table sees it."""
    what: str
    happens: Happening
    options: tuple[tuple[str, Any], ...] = ()
    here: World | None = None
    """Where the replays are made; where the run ended, when None."""
    witness: bool = True
    previous: bool = True
    ask: int | None = None
    """The step to ask about when nothing stands out: replicas were found to differ there."""


def cases(chance: random.Random) -> Iterator[Case]:
    """One of each kind of case, with moments and noise drawn anew."""
    at = chance.randrange(24, 52)
    jitter = chance.random() < 0.5
    healthy = World(jitter=jitter)
    for fault in ("scale", "flip", "sporadic"):
        faulty = replace(healthy, machine=fault)
        yield Case("machine", f"{fault} from step {at}", Happening(healthy, at, faulty))
        yield Case("machine", f"{fault} always", Happening(faulty))
    for fault in ("scale", "flip"):
        once = Happening(healthy, at, replace(healthy, machine=fault), only_once=True)
        yield Case("machine", f"{fault} once at {at}", once, here=healthy, ask=at + 1)
    memory = Happening(healthy, at, corrupts=True)
    yield Case("machine", f"memory at {at}", memory)
    for fault in ("future", "shift", "scale", "head", "backward"):
        wrong = Happening(replace(healthy, kernel=fault))
        yield Case("parallel or kernel bug", f"compiled: {fault}", wrong, COMPILED)
        yield Case("parallel or kernel bug", f"bf16: {fault}", wrong, BF16)
    for fault in ("shift", "scale", "head", "smoothing", "update"):
        new = replace(healthy, software=fault)
        yield Case("software", f"{fault} from step {at}", Happening(healthy, at, new))
        yield Case("software", f"{fault} always", Happening(new))
    for kind in ("constant", "random", "pattern"):
        for length in (1, 2, 3):
            steps = tuple(range(at, at + length))
            bad = Happening(healthy, poison=(steps, kind))
            options = BF16 if chance.random() < 0.3 else ()
            yield Case("data", f"{kind} in {length} batches", bad, options)
    for factor in (20, 60, 200):
        raised = Happening(healthy, at, sets=(("optim.lr", 3e-3 * factor),))
        yield Case("hyper-parameter", f"rate times {factor} from step {at}", raised)
    for factor in (30, 100):
        sets = (("optim.lr", 3e-3 * factor), ("optim.clip", 0.0))
        unclipped = Happening(healthy, at, sets=sets)
        yield Case("hyper-parameter", f"rate times {factor}, unclipped", unclipped)
    for rate in (0.05, 0.2, 0.6):
        high = (("optim.lr", rate), ("optim.schedule.warmup_steps", chance.randrange(12, 40)))
        options = (*high, *(BF16 if chance.random() < 0.3 else ()))
        yield Case("hyper-parameter", f"rate {rate}", Happening(healthy), options)
    decay = Happening(healthy, at, sets=(("optim.weight_decay", 100.0),))
    yield Case("hyper-parameter", f"decay 100 from step {at}", decay)
    beta = Happening(healthy, at, sets=(("optim.beta2", 0.0), ("optim.lr", 0.03)))
    yield Case("hyper-parameter", f"β₂ 0 from step {at}", beta)
    yield Case("undetermined", "healthy", Happening(healthy))
    yield Case("undetermined", "healthy bf16", Happening(healthy), BF16)
    yield Case("undetermined", "healthy compiled", Happening(healthy), COMPILED)
    yield Case("undetermined", "healthy, dropout", Happening(healthy), (("model.dropout", 0.2),))
    for fault in ("scale", "flip"):
        once = Happening(healthy, at, replace(healthy, machine=fault), only_once=True)
        told = f"{fault} once at {at}, no witness"
        yield Case("undetermined", told, once, here=healthy, witness=False, ask=at + 1)
    alone = Happening(healthy, at, corrupts=True)
    yield Case("undetermined", f"memory at {at}, no witness", alone, witness=False)
    new = Happening(healthy, at, replace(healthy, software="scale"))
    yield Case("undetermined", "software, the one before not there", new, previous=False)


COMPILED = (("machine.compile", "true"),)
BF16 = (("precision.compute", "bf16"),)


class Other:
    """The other process."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("cause_worlds.py"))
        self._process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def replays_in(self, world: World) -> Elsewhere:
        def compute(bundles: tuple[Bundle, ...]) -> Twice:
            with tempfile.TemporaryDirectory(prefix="cause-") as room:
                folders = [Path(room) / str(number) for number in range(len(bundles))]
                for folder, bundle in zip(folders, bundles, strict=True):
                    save_bundle(folder, bundle)
                asked = {"folders": list(map(str, folders)), "world": asdict(world)}
                assert self._process.stdin is not None
                assert self._process.stdout is not None
                self._process.stdin.write(json.dumps(asked) + "\n")
                self._process.stdin.flush()
                return read_figures(self._process.stdout.readline(), "the other process")

        return compute

    def end(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(timeout=30)


@contextmanager
def other_process() -> Iterator[Other]:
    other = Other()
    try:
        yield other
    finally:
        other.end()


def standing_out(folder: RunFolder, chance: random.Random) -> int | None:
    """The step that a person would ask about: the first that stands out, or one soon after."""
    figures = [
        Figures(r.step, r.loss, r.gradient_norm, r.masked)
        for r in read_journal(folder, events=False)
        if isinstance(r, StepRecord)
    ]
    for figure_ in figures[12:]:
        if symptom_of(figures[: figure_.step], figure_.step).kind != "none":
            return min(figure_.step + chance.randrange(3), len(figures))
    return None


def answer(case: Case, name: str, room: Path, other: Other, seed: int) -> tuple[Cause, str] | None:
    """Train the run, and ask about it; None if what was injected did no harm."""
    options = {**BASE, "seed": seed, **dict(case.options)}
    typed = tuple(f"{path}={value}" for path, value in options.items())
    chance = random.Random(seed)
    now = case.here or case.happens.then or case.happens.begins
    with poisoned(*case.happens.poison, BLOCKS):
        folder = train(room, name, typed, case.happens)
        step = case.ask or standing_out(folder, chance)
        if step is None and case.cause in ("data", "hyper-parameter"):
            return None
        # What is silent is asked about because something else raised doubt.
        step = step or chance.randrange(24, STEPS)
        means = RemedyOptions(
            witness=other.replays_in(now.honest()) if case.witness else None,
            previous=other.replays_in(now.before()) if case.previous else None,
        )
        with living_in(now):
            found = diagnose(folder.path, step, options=means)
    symptom = f"{found.symptom.kind} at {step}"
    return found.verdict.cause, f"{symptom}: {found.verdict.sentence}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", default="", help="causes that begin so")
    given = parser.parse_args()
    counted: Counter[tuple[str, str]] = Counter()
    harmless, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cause-matrix-") as name, other_process() as other:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            for number, case in enumerate(cases(random.Random(seed))):
                if not case.cause.startswith(given.only):
                    continue
                run = f"run-{seed}-{number}"
                told = answer(case, run, Path(name), other, 100 * seed + number)
                if told is None:
                    harmless += 1
                    print(f"- {case.cause:23} {case.what:36}   did no harm", flush=True)
                    continue
                cause, why = told
                counted[case.cause, cause] += 1
                mark = " " if cause == case.cause else "✗"
                print(f"{mark} {case.cause:23} {case.what:36} → {cause:23} {why}", flush=True)
    report(counted, harmless, given, time.monotonic() - began)


def report(
    counted: Counter[tuple[str, str]], harmless: int, given: argparse.Namespace, seconds: float
) -> None:
    """Print the matrix, and write the results."""
    print(f"\n{'injected':24}" + "".join(f"{cause.split()[0]:>16}" for cause in CAUSES))
    for truth in CAUSES:
        print(f"{truth:24}" + "".join(f"{counted[truth, named]:16}" for named in CAUSES))
    total, right = counted.total(), sum(counted[cause, cause] for cause in CAUSES)
    wrongly = sum(counted[truth, "machine"] for truth in CAUSES if truth != "machine")
    bars = [
        at_least("causes named right", 100 * right / total, "%", 90, f"{right} of {total}"),
        figure("machines accused wrongly", wrongly, "cases"),
        figure("left out: what was injected did no harm", harmless, "cases"),
        figure("seconds a case", seconds / total, "s"),
    ]
    for truth in CAUSES:
        of_it = sum(counted[truth, named] for named in CAUSES)
        if of_it:
            named = {n: counted[truth, n] for n in CAUSES if counted[truth, n]}
            note = ", ".join(f"{name} {count}" for name, count in named.items())
            bars.append(
                figure(truth, 100 * counted[truth, truth] / of_it, "%", f"of {of_it}: {note}")
            )
    if given.only:
        print("a part only: no results are written")
        return
    write_results("cause_matrix", bars, f"python -m benchmarks.cause_matrix --seeds {given.seeds}")


if __name__ == "__main__":
    main()
