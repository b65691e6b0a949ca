"""Making runs, each once: the records as kept, and the truth about them.

Enters: declared runs. Leaves: `Made` runs, from a cache where they are there already. Never knows:
findings.

A run's file is named by the hash of all that decides its records, so a generation that was broken
off goes on, and a changed recipe is made anew.
"""

import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.divergence_lab import traces
from benchmarks.divergence_lab.drive import moved_share, records
from benchmarks.divergence_lab.faults import TEXT_FAULTS
from benchmarks.divergence_lab.runs import Run
from benchmarks.divergence_lab.truth import Truth, judged_by_itself, judged_by_twin

from longhaul.core.records import StepRecord

_STILL = 1e-6
"""A group whose weights changed by no more than this share of their norm did not train."""


@dataclass(frozen=True)
class Made:
    """A run that was made."""

    name: str
    mechanism: str
    harmless: tuple[str, ...]
    truth: Truth
    trace: traces.Trace

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """Its step records."""
        return tuple(record for record in self.trace if isinstance(record, StepRecord))


def make(run: Run, home: Path) -> Made:
    """Train the run, and its twin if it has a cause."""
    trace = _trace(run, home)
    return Made(run.name, run.mechanism, run.harmless, _truth(run, trace, home), trace)


def _trace(run: Run, home: Path) -> traces.Trace:
    path = home / "traces" / f"{run.key()}.parquet"
    if path.exists():
        return traces.read(path)[run.key()]
    trace = tuple(traces.as_kept(record) for record in records(run, home))
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    traces.write(unfinished, {run.key(): trace})
    unfinished.replace(path)
    return trace


def _truth(run: Run, trace: traces.Trace, home: Path) -> Truth:
    path = home / "traces" / f"{run.key()}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    steps = [record for record in trace if isinstance(record, StepRecord)]
    losses = [record.loss for record in steps]
    stages = [(r.mixture_stage, r.sequences, r.sequence_length) for r in steps]
    if not run.meant_to_fail:
        return judged_by_itself(losses, stages)
    if "twin" not in known:
        known["twin"] = [
            r.loss for r in _trace(run.undisturbed(), home) if isinstance(r, StepRecord)
        ]
        if run.fault is not None and run.fault.kind.startswith("frozen-"):
            known["moved"] = moved_share(run, home, run.fault.kind.removeprefix("frozen-"))
        path.write_text(json.dumps(known))
    text_touched = run.fault is not None and run.fault.kind in TEXT_FAULTS
    truth = judged_by_twin(losses, known["twin"], run.onset, text_touched)
    if known.get("moved", 1.0) <= _STILL:
        return replace(truth, outcome="frozen")
    sane = judged_by_itself(known["twin"], stages)
    # Without a sound twin there is nothing to compare with.
    return truth if sane.healthy else replace(truth, outcome="doubtful")


def make_all(runs: Iterable[Run], home: Path, processes: int) -> Iterator[Made]:
    """Make all, in any order of completion, over several processes of one thread each."""
    waiting = list(runs)
    if processes == 1:
        yield from (make(run, home) for run in waiting)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for done in as_completed([pool.submit(make, run, home) for run in waiting]):
            yield done.result()
