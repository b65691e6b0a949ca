"""Trains a recipe with other settings, and keeps each run so that it is never trained again."""

import hashlib
import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.ablate.ideas import Settings, Study
from benchmarks.common import Bar, circumstances
from benchmarks.gpu.race import cut
from benchmarks.gpu.setting import QUIET, NotMeasured, Setting

from longhaul.config.load import load_recipe
from longhaul.core.clocks import STEP_BUCKETS
from longhaul.core.errors import UsageError
from longhaul.core.records import StepRecord
from longhaul.logbook.reading import read_journal

_PAIRS_OF_PACE, _STEPS_OF_PACE = 3, 20
NO_TIME = "no time is left"
_MARGIN = 1.3
"""A run is begun while so many times the longest one so far are left."""


@dataclass(frozen=True)
class Run:
    """One training run, by what it was of: settings beside the whole recipe's, seed and length."""

    settings: Settings
    seed: int
    steps: int
    """That the whole recipe has at this length."""
    loss: float
    """On the whole held-out split, at the end."""
    tokens: int
    seconds: float
    """Of steps, by the journal: what compiles, evaluates or starts is left out."""
    step_s: float
    """Wall seconds of a step, the median."""
    whole_s: float
    """Of the process."""


class Results:
    """`ablate-RECIPE.json`: every run, and what follows from them."""

    def __init__(self, path: Path, facts: Mapping[str, Any], anew: bool = False) -> None:
        """UsageError if the file has runs that cannot be compared with those of `facts`."""
        self.path, self._facts = path, dict(facts)
        self.runs: dict[tuple[Settings, int, int], Run] = {}
        self.paces: dict[Settings, list[float]] = {}
        if anew or not path.is_file():
            return
        body = json.loads(path.read_text())
        for name in ("on", "steps", "base"):
            if body[name] != facts[name]:
                raise UsageError(
                    f"{path}: its runs have {name} {body[name]!r}, not {facts[name]!r}",
                    "give --again to measure all anew, or --results DIR to keep both",
                )
        for row in body["runs"]:
            run = Run(**{**row, "settings": tuple(row["settings"])})
            self.runs[run.settings, run.seed, run.steps] = run
        self.paces = {tuple(row["settings"]): row["ratios"] for row in body["paces"]}

    @classmethod
    def read(cls, path: Path) -> "Results":
        """What a file holds."""
        return cls(path, json.loads(path.read_text()))

    def fact(self, name: str) -> Any:
        """How the runs were made, by name."""
        return self._facts[name]

    def add(self, run: Run) -> None:
        """Keep a run that has just ended."""
        self.runs[run.settings, run.seed, run.steps] = run
        self.write()

    def of(self, settings: Settings, steps: int) -> dict[int, Run]:
        """Runs by seed, as many of them as there are."""
        return {
            seed: run
            for (own, seed, length), run in sorted(self.runs.items(), key=lambda item: item[0][1])
            if (own, length) == (settings, steps)
        }

    def write(self, bars: Sequence[Bar] = ()) -> None:
        """The file, with figures where there are some."""
        body = {**self._facts, **circumstances(), "bars": [asdict(bar) for bar in bars]}
        body["runs"] = [asdict(run) for run in self.runs.values()]
        body["paces"] = [{"settings": own, "ratios": made} for own, made in self.paces.items()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


class Trainings:
    """Runs of a study's recipe on one text, each in a process of its own, so many at a time."""

    def __init__(self, study: Study, setting: Setting, data: Path | None, jobs: int) -> None:
        self._study, self._setting, self._data = study, setting, data
        self._numbers, self._jobs = itertools.count(), jobs
        self._base = base_of(study, setting)
        self._longest_s = 0.0
        setting.dataset(load_recipe(study.recipe, self._base, data and str(data)).recipe)

    def runs(self, settings: Settings, seeds: Iterable[int], steps: int) -> Iterator[Run]:
        """One run of each seed; NotMeasured where no time is left for one, or one fails."""
        with ThreadPoolExecutor(self._jobs) as workers:
            yield from workers.map(lambda seed: self._run(settings, seed, steps), seeds)

    def pace(self, settings: Settings, most: int) -> list[float]:
        """Seconds of a step with these settings over those of the whole recipe, side by side, in
        runs of `most` steps at most.
        """
        ratios = []
        for seed in range(1, _PAIRS_OF_PACE + 1):
            with ThreadPoolExecutor(2) as workers:
                pair = [
                    workers.submit(self._run, some, seed, min(most, _STEPS_OF_PACE))
                    for some in (settings, ())
                ]
                own, whole = (one.result().step_s for one in pair)
            ratios.append(own / whole)
        return ratios

    def _run(self, settings: Settings, seed: int, steps: int) -> Run:
        """Train, and read the journal."""
        if self._setting.left_s < _MARGIN * self._longest_s:
            raise NotMeasured(NO_TIME)
        left_s, room = self._setting.left_s, self._setting.room / f"runs-{next(self._numbers)}"
        options = [*self._base, *settings, *length(self._base, self._study.recipe, settings, steps)]
        options += [*QUIET, f"seed={seed}"]
        run = self._setting.train_as_told(self._study.recipe, options, room, self._data)
        made = [r for r in read_journal(run, events=False) if isinstance(r, StepRecord)]
        finished = next(r for r in read_journal(run, steps=False) if r.kind == "finished")
        each = [sum(r.seconds.get(bucket, 0.0) for bucket in STEP_BUCKETS) for r in made]
        took_s = left_s - self._setting.left_s
        self._longest_s = max(self._longest_s, took_s)
        return Run(
            settings, seed, steps, float(finished.data["loss"]), sum(r.tokens for r in made),
            sum(each), statistics.median(each), took_s,
        )  # fmt: skip


def base_of(study: Study, setting: Setting) -> list[str]:
    """Settings of all runs."""
    if setting.tiny:
        return setting.options(study.recipe, "data.held_out.fraction=0.001")
    if study.on_gpu:
        return setting.options(study.recipe, *study.shape)
    return ["machine.threads=1"]


def length(base: Sequence[str], recipe: str, settings: Settings, steps: int) -> list[str]:
    """Overrides that make a run as long as the whole recipe is with so many steps; a batch schedule
    of its own has as many tokens in more of them.
    """
    whole = load_recipe(recipe, base).recipe.total_steps()
    own = load_recipe(recipe, [*base, *settings]).recipe
    assert whole is not None
    return cut(own, max(1, round(steps * (own.total_steps() or whole) / whole)))


def fingerprint(base: Sequence[str], recipe: str) -> str:
    """Of the whole recipe as it is trained, text included."""
    whole = load_recipe(recipe, base).recipe.model_dump(mode="json")
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]
