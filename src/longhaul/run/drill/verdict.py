"""What a drilled run is worth beside its baseline, the same run without faults."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from longhaul.core.events import EventKind
from longhaul.core.output import time_rows
from longhaul.core.units import Bytes, Seconds, short_seconds
from longhaul.run.drill.drilled_run import DrilledRun
from longhaul.run.drill.fault import Fault
from longhaul.run.drill.incidents import Incident, must_be_noticed
from longhaul.store.run_differences import Differences, differences
from longhaul.supervise.causes import last_message

MOST = 1.02
"""Largest validation loss after faults in numbers, as a multiple of the undisturbed run's."""
_JUDGED = ("slow", "bitflip-weight", "bitflip-grad")
"""Faults that act on what is judged of ranks."""
_LAST_MESSAGE: Bytes = 16_384
_WIDTHS = (34, 10, 10, 5, 11)


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one drilled run."""

    run: DrilledRun
    baseline: DrilledRun
    exact: bool
    """It had to end in the very bytes of its baseline."""
    found: Differences | None
    """Where they were compared, which takes two finished runs."""
    complaints: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Nothing is to be complained of."""
        return not self.complaints

    def lines(self) -> Iterator[str]:
        """For a person."""
        yield _row("fault", "noticed", "went on", "lost", "by", "story")
        yield from map(_line, self.run.incidents)
        wall = short_seconds(sum(self.run.spent.values()))
        spent = ", ".join(f"{bucket} {s}" for bucket, s, _ in time_rows(self.run.spent))
        yield f"goodput {self.run.goodput:.1%} of {wall}: {spent}"
        yield self._end_in_words()
        left = "; ".join(self.run.leftovers) or "no process, port, shared memory, temporary file"
        yield f"left behind: {left}"
        yield from (f"  {complaint}" for complaint in self.complaints)

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        run = self.run
        return {
            "run": str(run.folder.path),
            "exit_codes": list(run.exit_codes),
            "seconds": round(run.seconds, 3),
            "goodput": _finite(run.goodput),
            "spent_s": run.spent,
            "incidents": [asdict(incident) for incident in run.incidents],
            "loss": _finite(run.loss),
            "loss_alone": _finite(self.baseline.loss),
            "byte_identical": None if self.found is None else self.found.none,
            "leftovers": list(run.leftovers),
            "complaints": list(self.complaints),
            "passed": self.passed,
        }

    def _end_in_words(self) -> str:
        if self.found is None:
            return "it did not finish: there is nothing to compare"
        loss = f"validation loss {self.run.loss:.4f}, {self.baseline.loss:.4f} without faults"
        if not self.exact:
            return (
                f"{loss} ({self.run.loss / self.baseline.loss - 1:+.2%}, at most {MOST - 1:+.0%})"
            )
        size = (
            f"{self.found.compared_pieces} pieces of state and {self.found.compared_steps} losses"
        )
        return f"{loss}; {size} {'are byte-identical' if self.found.none else 'DIFFER'}"


def judge_run(run: DrilledRun, baseline: DrilledRun, faults: Sequence[Fault]) -> Verdict:
    """Compare a run with these faults with a baseline of the same number of steps."""
    undone = {incident.fault for incident in run.incidents if incident.undone}
    exact = all(f.known.harm != "numbers" or (f.once and str(f) in undone) for f in faults)
    # Fewer ranks add up in another order, and draw other masks.
    exact = (
        exact and len({event.data["layout"] for event in run.events(EventKind.ATTEMPT_BEGAN)}) <= 1
    )
    finished = run.exit_code == 0 and baseline.exit_code == 0
    # Wrong numbers that were undone have been in the journal for a while.
    found = differences(baseline.folder, run.folder, kept_only=bool(undone)) if finished else None
    wrong = (*_ended(run, baseline, exact, found), *_came(run, faults), *run.leftovers)
    return Verdict(run, baseline, exact, found, wrong)


def _ended(
    run: DrilledRun, baseline: DrilledRun, exact: bool, found: Differences | None
) -> Iterator[str]:
    if run.exit_code != 0:
        why = last_message(run.output.read_text(errors="replace")[-_LAST_MESSAGE:])
        yield f"it ended with exit code {run.exit_code}: {why} (all its output is in {run.output})"
    if found is None:
        return
    if exact and not found.none:
        named = ", ".join([*found.pieces[:3], *(f"step {step}" for step in found.steps[:3])])
        yield f"it ended in other bytes than its baseline: {named}"
    if not exact and not run.loss <= MOST * baseline.loss:
        yield f"its loss is {run.loss / baseline.loss:.4f} of the other's, more than {MOST:g}"


def _came(run: DrilledRun, faults: Sequence[Fault]) -> Iterator[str]:
    came = Counter(done.fault for done in run.done)
    for fault in faults:
        if not came[str(fault)]:
            yield f"{fault} did not come about"
    yield from _accused(run, faults)
    for incident in run.incidents:
        noticed = incident.detect_s is not None
        if not noticed and must_be_noticed(incident, run.records):
            yield f"{incident.fault}: nobody noticed"
        if noticed and incident.recover_s is None and run.exit_code == 0:
            yield f"{incident.fault}: nothing went on after it"


def _accused(run: DrilledRun, faults: Sequence[Fault]) -> Iterator[str]:
    """Ranks that were named as wrong although no fault acted on them."""
    if not any(fault.kind in _JUDGED for fault in faults):
        return
    guilty = {(done.attempt, done.rank) for done in run.done}
    for verdict in run.events(EventKind.MACHINE_VERDICT):
        for rank in verdict.data["ranks"]:
            # What a flipped weight has done to a rank is there until the run goes back.
            if not any(rank == own and attempt <= verdict.attempt for attempt, own in guilty):
                yield f"rank {rank} was named, and no fault acted on it: {verdict.data['reason']}"


def _line(incident: Incident) -> str:
    detected, recovered = map(_seconds, (incident.detect_s, incident.recover_s))
    lost, by = str(incident.steps_lost), incident.by or "–"
    return _row(incident.fault, detected, recovered, lost, by, incident.story)


def _finite(value: float) -> float | None:
    """JSON has no word for what is not a number."""
    return value if math.isfinite(value) else None


def _seconds(value: Seconds | None) -> str:
    return "–" if value is None else short_seconds(value)


def _row(*cells: str) -> str:
    """One line of the table; what is too long for its column pushes the others on."""
    padded = (cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False))
    return " ".join((*padded, cells[-1])).rstrip()
