"""`longhaul data value`: trains what its plan wants, several models at a time, and reads losses.

Each model is a cell with a folder of its own, whose name follows from all its settings and its
text: a second start of the same command finds what is done and goes on with the rest.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from longhaul.config.load import load_recipe, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.errors import LonghaulError, RecipeError, UsageError
from longhaul.core.files import write_json
from longhaul.core.output import Say
from longhaul.core.strict import read_object
from longhaul.core.units import Nats, short_seconds
from longhaul.data.dataset import Dataset, read_manifest, shards_of
from longhaul.data.prepare import prepare
from longhaul.parallel.layout import find_place, usable_cores
from longhaul.plan.value.analysis import Value, analyse, as_data
from longhaul.plan.value.variants import Cell, ValuePlan, Variant, plan_value
from longhaul.run.value.cell import RESULT, CellJob, begin_worker, train_cell

_EVALUATED = 0.5
"""Tokens of all held-out sets that are read, in shares of those trained on; an evaluation of as
many costs a third of training."""
_OWN: dict[str, object] = {
    "evaluation.interval_steps": 0, "checkpoint.interval_steps": 0,
    "checkpoint.snapshot_interval_steps": 0, "monitor.gauge_interval_steps": 0,
    "monitor.hash_every": 0, "monitor.witness_every": 0, "batch.stages": [],
    "machine.processes": 1, "machine.compile": False, "parallel.replicate": None,
    "parallel.shard": None, "parallel.tensor": 1, "parallel.pipeline": 1,
    "parallel.stages_per_rank": 1, "parallel.elastic": False, "supervise.node": [],
    "checkpoint.remote": [],
}  # fmt: skip


@dataclass(frozen=True)
class ValueRequest:
    """What was typed."""

    recipe: str
    options: tuple[str, ...] = ()
    data: str | None = None
    tokens: int | None = None
    seeds: int = 3
    sizes: tuple[float, ...] = (0.25, 0.5)
    changes: tuple[str, ...] = ()
    workers: int | None = None
    folder: Path | None = None
    prepared: Path = Path("prepared")
    dry: bool = False


def value_of(typed: ValueRequest, say: Say) -> tuple[Value, Path] | None:
    """Train every model of the study that is not there yet; what they say, and the study's folder.
    None if it was only to be planned.

    Raises:
        RecipeError, UsageError: the recipe is wrong, or makes no such study: nothing was trained.
        DataError: a text cannot be prepared.
    """
    if find_place(os.environ) is not None:
        raise UsageError(
            "data value: started as one of several processes", "start it once, without torchrun"
        )
    recipe = load_recipe(typed.recipe, typed.options, typed.data).recipe
    if recipe.init.from_ is not None:
        raise RecipeError(
            f"init.from: {recipe.init.from_} has weights of one size, and smaller ones are trained",
            "take the table [init] out of the recipe",
        )
    folder = typed.folder or Path("values") / recipe.name
    device, formats = _device(recipe)
    cores = usable_cores() if typed.workers is None else typed.workers
    plan = plan_value(
        recipe, typed.sizes, typed.seeds, typed.tokens, typed.changes, cores, device != "cpu"
    )
    if typed.dry:
        for line in plan.bill():
            say(line)
        return None
    whole = prepare(recipe, typed.prepared, say)
    plan, texts = _texts(recipe, plan, whole, typed.prepared, say)
    for line in plan.bill():
        say(line)
    study = _Study(recipe, plan, folder, whole, texts, formats, device)
    results = study.train(say)
    value = analyse(plan, results)
    write_json(folder / "value.json", as_data(value))
    return value, folder


def _device(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    """Kind of the device, and the format of numbers that all models compute in."""
    from longhaul.parallel.device import own_device
    from longhaul.train.precision import measured_recipe

    device = own_device(recipe.machine.device)
    if device.type == "cpu":  # what is fastest alone is not what is fastest beside another
        auto = recipe.precision.compute == "auto"
        return "cpu", {"precision.compute": "float32"} if auto else {}
    return device.type, measured_recipe(recipe, device)


def _texts(
    recipe: Recipe, plan: ValuePlan, whole: Dataset, prepared: Path, say: Say
) -> tuple[ValuePlan, dict[str, Dataset]]:
    """The text of each variant that has one of its own, by name; variants whose text is the whole
    recipe's are left out of the plan.
    """
    found: dict[str, Dataset] = {}
    kept: list[Variant] = []
    for variant in plan.variants:
        if not variant.prepares:
            kept.append(variant)
            continue
        tokenizer = whole.folder / whole.tokenizer_file
        changed = with_overrides(recipe, variant.settings_for(recipe))
        own = prepare(changed, prepared, say, tokenizer)
        if own.identity == whole.identity:
            say(f"{variant.name}: the text is the same, so that there is nothing to compare")
            continue
        if tails := _other_tails(whole, own):
            say(
                f"{variant.name} is not compared: the tail of {tails} is held out, and is another "
                'text there; data.held_out.by = "document" would do'
            )
            continue
        found[variant.name] = own
        kept.append(variant)
    if len(kept) == 1:
        raise UsageError(
            f"recipe {recipe.name}: no variant has other data than the recipe itself",
            "add sources, or name a change of the data with --change PATH=VALUE",
        )
    return replace(plan, variants=tuple(kept)), found


def _other_tails(whole: Dataset, own: Dataset) -> str:
    """Sources whose held-out text may be among what a variant trains on: by document it is not, as
    a document is held out everywhere or nowhere.
    """
    before, now = (shards_of(read_manifest(text.folder)) for text in (whole, own))
    tails = [source.name for source in whole.sources if source.split != "document"]
    return ", ".join(name for name in tails if before[name] != now.get(name))


class _Study:
    """The models of one study on disk."""

    def __init__(
        self,
        recipe: Recipe,
        plan: ValuePlan,
        folder: Path,
        whole: Dataset,
        texts: Mapping[str, Dataset],
        formats: Mapping[str, Any],
        device: str,
    ) -> None:
        self._recipe, self._plan, self._folder = recipe, plan, folder
        self._whole, self._texts = whole, texts
        threads = {"machine.threads": recipe.machine.threads or 1} if device == "cpu" else {}
        self._own = _OWN | dict(formats) | threads

    def train(self, say: Say) -> dict[Cell, dict[str, Nats]]:
        """All cells, those of an earlier start from disk."""
        jobs = {cell: self._job(cell) for cell in self._plan.cells}
        results = {cell: losses for cell, job in jobs.items() if (losses := _found(job))}
        if results:
            say(f"{len(results)} of {len(jobs)} models were made before")
        left = {cell: job for cell, job in jobs.items() if cell not in results}
        began = time.monotonic()
        for number, (cell, losses) in enumerate(self._trained(left), 1):
            results[cell] = losses
            each = (time.monotonic() - began) / number
            mean = sum(losses.values()) / len(losses)
            say(
                f"{len(results):4} of {len(jobs)}  {self._name(cell)}: {mean:.4f} nats; "
                f"{short_seconds(each * (len(left) - number))} left"
            )
        return results

    def _trained(self, jobs: Mapping[Cell, CellJob]) -> Iterator[tuple[Cell, dict[str, Nats]]]:
        if not jobs:
            return
        pool = ProcessPoolExecutor(
            min(self._plan.workers, len(jobs)), get_context("spawn"), begin_worker
        )
        waiting: dict[Future[dict[str, Nats]], Cell] = {}
        try:
            for cell, job in jobs.items():
                waiting[pool.submit(train_cell, job)] = cell
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    cell = waiting.pop(future)
                    try:
                        yield cell, future.result()
                    except LonghaulError:
                        raise
                    except Exception as error:
                        raise LonghaulError(
                            f"{self._name(cell)}: {type(error).__name__}: {error}",
                            "the same command goes on with what is left",
                        ) from error
        finally:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)

    def _job(self, cell: Cell) -> CellJob:
        size, variant = self._plan.sizes[cell.size], self._plan.variants[cell.variant]
        settings = size.settings | self._own | {"seed": cell.seed}
        if self._recipe.batch.micro_sequences == "auto":
            settings["batch.micro_sequences"] = 1
        sized = with_overrides(self._recipe, settings)
        recipe = with_overrides(sized, variant.settings_for(sized))
        text = self._texts.get(variant.name, self._whole)
        most = int(_EVALUATED * size.tokens / len(self._whole.sources))
        values = recipe.model_dump(mode="json")
        facts = json.dumps([values, text.identity, self._whole.identity, most], sort_keys=True)
        digest = hashlib.sha256(facts.encode()).hexdigest()[:8]
        name = re.sub(r"[^\w.-]+", "-", f"{self._name(cell)} {digest}")
        return CellJob(
            self._folder / "cells" / name, values, text.folder, self._whole.folder,
            max(most, recipe.model.context),
        )  # fmt: skip

    def _name(self, cell: Cell) -> str:
        size, variant = self._plan.sizes[cell.size], self._plan.variants[cell.variant]
        return f"{size.name} {variant.name} seed {cell.seed}"


def _found(job: CellJob) -> dict[str, Nats] | None:
    """What a cell's losses were, if it is done; words stand for what is no number."""
    try:
        losses = read_object(job.folder / RESULT)["losses"]
        return {str(name): float(loss) for name, loss in losses.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
