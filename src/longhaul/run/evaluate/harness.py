"""Tasks of EleutherAI's lm-evaluation-harness, asked of a trained model.

Imported only where the harness is: its own import takes seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval import evaluator
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from longhaul.core.errors import UsageError
from longhaul.run.evaluate.scorer import Score, Scorer, Wanted, Window, windows_of, write
from longhaul.run.trained import Trained
from longhaul.train.sampling import prompt_tokens

_BOOTSTRAPS = 1000
"""Resamplings behind the standard error of a metric that is no mean."""
_MOST_TOKENS = 256
"""Written where a task names no limit, as the harness has it."""


class HarnessModel(LM):  # type: ignore[misc]  # the harness carries no types
    """A trained model as the harness asks it (`lm_eval.api.model.LM`)."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self._trained = trained
        self._tokenizer = trained.dataset.tokenizer
        self._scorer = Scorer(trained)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Log-likelihood in nats of each continuation behind its context, and whether it is what
        the model would write. Context that does not fit is cut off on the left.
        """
        return self._scored([self._pair(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Log-likelihood in nats of each whole text, behind what stands before every text."""
        whole = []
        for (text,) in (request.args for request in requests):
            ids = self._encoded(text)
            whole.append(([*prompt_tokens(self._tokenizer, ""), *ids], len(ids)))
        return [nats for nats, _ in self._scored(whole)]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """What the model writes behind each context, up to the first of the texts `until`."""
        return write(self._trained, [self._wanted(*request.args) for request in requests])

    def _pair(self, context: str, continuation: str) -> tuple[list[int], int]:
        if not context:
            ids = self._encoded(continuation)
            return [*prompt_tokens(self._tokenizer, ""), *ids], len(ids)
        # A space belongs to the word behind it, as in text that was trained on.
        plain = context.rstrip()
        continuation = context[len(plain) :] + continuation
        whole, before = self._encoded(plain + continuation), self._encoded(plain)
        return whole, len(whole) - len(before)

    def _wanted(self, context: str, options: dict[str, Any]) -> Wanted:
        until = options.get("until") or []
        samples = options.get("do_sample", options.get("temperature", 0) > 0)
        return Wanted(
            tokens=tuple(prompt_tokens(self._tokenizer, context)),
            until=(until,) if isinstance(until, str) else tuple(until),
            most_tokens=int(options.get("max_gen_toks", _MOST_TOKENS)),
            temperature=float(options.get("temperature", 1.0)) if samples else 0.0,
        )

    def _encoded(self, text: str) -> list[int]:
        return [int(token) for token in self._tokenizer.encode(text)]

    def _scored(self, whole: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """(log-likelihood, greedy) of the last tokens of each, however many windows that takes."""
        windows: list[Window] = []
        of_request: list[int] = []
        for number, (tokens, scored) in enumerate(whole):
            own = list(windows_of(tokens, scored, self._trained.recipe.model.context))
            windows += own
            of_request += [number] * len(own)
        totals = [Score()] * len(whole)
        for number, score in zip(of_request, self._scorer.score(windows), strict=True):
            totals[number] += score
        return [(-total.nats, total.greedy) for total in totals]


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One metric of one task."""

    task: str
    metric: str
    value: float
    error: float | None
    """Standard error; None where the harness gives none."""

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.4f}"
        return f"{self.task}: {self.metric} {self.value:.4f}{error}"


def task_scores(
    trained: Trained,
    tasks: Sequence[str],
    folder: Path | None = None,
    limit: int | None = None,
    shots: int | None = None,
) -> list[TaskScore]:
    """The metrics of tasks: the harness's own, whose data it fetches, or those of `folder`.

    Args:
        trained: the model.
        tasks: names of tasks, or of groups of them.
        folder: holds task files (YAML), whose code, if they name some, is run.
        limit: documents of each task; None asks all.
        shots: examples before each question; None as the task has it.

    Raises:
        UsageError: there is no such task, or its files are wrong.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = _manager(tasks, folder)
    try:
        with _not_looking_around():
            found = evaluator.simple_evaluate(
                model=HarnessModel(trained), tasks=list(tasks), task_manager=manager, limit=limit,
                num_fewshot=shots, log_samples=False, bootstrap_iters=_BOOTSTRAPS,
            )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        said = f"{type(error).__name__}: {str(error)[:300].partition(chr(10))[0]}"
        raise UsageError(
            f"tasks {', '.join(tasks)}: the harness cannot ask them ({said})",
            "mend their files, or give the machine a network to fetch their data from",
        ) from error
    return list(_scores(found["results"]))


@contextmanager
def _not_looking_around() -> Iterator[None]:
    """Keep the harness from running git and other programs to describe the machine: a run's
    logbook does that, and git complains where there is no repository.
    """
    names = [name for name in ("add_env_info", "get_git_commit_hash") if hasattr(evaluator, name)]
    kept = {name: getattr(evaluator, name) for name in names}
    try:
        for name in names:
            setattr(evaluator, name, lambda *_: None)
        yield
    finally:
        for name, function in kept.items():
            setattr(evaluator, name, function)


def _manager(tasks: Sequence[str], folder: Path | None) -> TaskManager:
    """Of a folder's tasks alone, if it has all: the harness's own are thousands of files."""
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no folder of tasks", "give one with --tasks-dir")
    path = None if folder is None else str(folder)
    for defaults in (False, True) if folder is not None else (True,):
        manager = TaskManager(include_path=path, include_defaults=defaults)
        unknown = [task for task in tasks if task not in manager.all_tasks]
        if not unknown:
            return manager
    where = "" if folder is None else f" nor in {folder}"
    raise UsageError(
        f"task {unknown[0]}: not among those of lm-evaluation-harness{where}",
        "`lm-eval ls tasks` lists them",
    )


def _scores(results: dict[str, dict[str, Any]]) -> Iterator[TaskScore]:
    for task, values in results.items():
        for key, value in values.items():
            metric, comma, way = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = values.get(f"{metric}_stderr,{way}")
            named = metric if way == "none" else f"{metric} ({way})"
            known = float(error) if isinstance(error, int | float) else None
            yield TaskScore(task, named, float(value), known)
