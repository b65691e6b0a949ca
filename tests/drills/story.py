"""What the journal of a drilled run says, held against what it ought to say."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from longhaul.core.clocks import time_spent, wall_seconds
from longhaul.core.records import Decision, Event, Finding, Record, Severity, StepRecord
from longhaul.core.units import Nats, Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import read_run_spec
from longhaul.logbook.segments import read_segments
from longhaul.recover.plan import WHO

_LEVEL_STEPS = 10
_HARM: Nats = 0.1
"""A median loss this much higher has left its band."""
_RANKS: dict[Severity, int] = {"notice": 0, "warning": 1, "alarm": 2}


@dataclass(frozen=True)
class Timeline:
    """A run that has ended.

    Read when first asked for, and then no more.
    """

    folder: RunFolder
    codes: tuple[int, ...]
    """Exit codes of its processes, in order; negative numbers are signals."""
    seconds: Seconds

    @cached_property
    def records(self) -> list[Record]:
        """The journal."""
        return list(read_journal(self.folder))

    @cached_property
    def steps(self) -> list[StepRecord]:
        """Every step that was made."""
        return [r for r in self.records if isinstance(r, StepRecord)]

    @cached_property
    def findings(self) -> list[Finding]:
        """Everything that was found."""
        return [r for r in self.records if isinstance(r, Finding)]

    @cached_property
    def decisions(self) -> list[Decision]:
        """Every recovery that was decided, by whomever."""
        return [r for r in self.records if isinstance(r, Decision) and r.kind == "recover"]

    def events(self, kind: str) -> list[Event]:
        """The events of a kind."""
        return [r for r in self.records if isinstance(r, Event) and r.kind == kind]

    @property
    def log(self) -> str:
        """What its processes said."""
        path = self.folder.workers / "0.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def loss(self) -> Nats:
        """Validation loss at the end of the run; NaN if it did not come to an end."""
        finished = self.events("finished")
        return float(finished[-1].data["loss"]) if finished else float("nan")

    @property
    def last_step(self) -> int:
        """Step of the last record."""
        return self.steps[-1].step if self.steps else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """How a drill must end. Steps are first signs; the rest is said by the journal."""

    kinds: tuple[str, ...] = ()
    """One of these must be found; of nothing else there may be a decision. Empty: nothing may be
    found that is more than a notice, and nothing decided."""
    severity: Severity = "warning"
    """At least."""
    first_sign: tuple[int, int] = (0, 10**9)
    """Between these steps, both included."""
    found_by: int = 10**9
    """Step by which it must have come to light."""
    subject: str = ""
    """That the finding must name."""
    evidence: str = ""
    """Figure that it must give."""
    batch_saved: bool = False
    """The batch of the first sign must have been kept, with its tokens and documents."""
    in_time: bool = False
    """It must come to light while the loss is still where it was."""
    actions: tuple[frozenset[str], ...] = ()
    """What the decisions must have been, in this order; others may lie between them."""
    alone: bool = False
    """There may be no other decision."""
    code: int = 0
    """Exit code of the last process."""
    loss_below: Nats = float("inf")
    """Validation loss at the end."""


def complaints(story: Timeline, expected: Expected) -> Iterator[str]:
    """Everything that is not as it ought to be."""
    yield from _ended(story, expected)
    yield from _found(story, expected)
    yield from _decided(story, expected)
    yield from _booked(story)


def seen(story: Timeline, expected: Expected) -> Finding | None:
    """The first finding that tells what was injected."""
    least = _RANKS[expected.severity]
    for finding in story.findings:
        begin, end = expected.first_sign
        fits = finding.kind in expected.kinds and _RANKS[finding.severity] >= least
        if fits and begin <= finding.first_step <= end and expected.subject in finding.subject:
            return finding
    return None


def _ended(story: Timeline, expected: Expected) -> Iterator[str]:
    if story.codes[-1] != expected.code:
        yield f"exit code {story.codes[-1]}, not {expected.code}"
    total = read_run_spec(story.folder).settings().total_steps()
    if expected.code == 0 and story.last_step != total:
        yield f"it ended at step {story.last_step} of {total}"
    if expected.code == 0 and not story.loss < expected.loss_below:
        yield f"validation loss {story.loss:.3f}, not below {expected.loss_below:g}"


def _found(story: Timeline, expected: Expected) -> Iterator[str]:
    harmful = [f for f in story.findings if f.severity != "notice"]
    if not expected.kinds:
        yield from (f"{f.severity} at step {f.step}: {f.sentence}" for f in harmful)
        return
    finding = seen(story, expected)
    if finding is None:
        there = ", ".join(f"{f.severity} {f.kind} {f.first_step}" for f in story.findings[:6])
        yield f"not found: {' or '.join(expected.kinds)} (there is: {there or 'nothing'})"
        return
    if finding.step > expected.found_by:
        yield f"found at step {finding.step}, later than {expected.found_by}"
    if expected.evidence and expected.evidence not in finding.evidence:
        yield f"the finding does not give its {expected.evidence}"
    if expected.batch_saved:
        yield from _saved(story, finding.first_step)
    if expected.in_time:
        before = _level(story, finding.first_step - _LEVEL_STEPS, finding.first_step)
        then = _level(story, finding.step - _LEVEL_STEPS, finding.step)
        if not then < before + _HARM:
            yield f"when it was found the loss had risen from {before:.2f} to {then:.2f}"


def _saved(story: Timeline, step: int) -> Iterator[str]:
    told = [event for event in story.events("batch-saved") if event.step == step]
    if not told:
        yield f"the batch of step {step} was not saved"
        return
    batch = json.loads((story.folder.path / told[0].data["path"]).read_bytes())
    made = next(record for record in story.steps if record.step == step)
    whole = batch["slots_left_out"] or len(batch["slots"]) == made.sequences
    lengths = {len(slot["tokens"].split()) for slot in batch["slots"]}
    named = all(slot["documents"] for slot in batch["slots"])
    if batch["draw"] != made.draw or not whole or not named:
        yield f"what was saved is not the batch of step {step}"
    if lengths != {made.sequence_length + 1}:
        yield f"what was saved of step {step} has sequences of {sorted(lengths)} tokens"


def _level(story: Timeline, begin: int, end: int) -> Nats:
    """Median loss of steps begin ≤ step < end, of the first time they were made."""
    losses = {step.step: step.loss for step in reversed(story.steps)}
    return median(losses[step] for step in range(max(begin, 1), end) if step in losses)


def _decided(story: Timeline, expected: Expected) -> Iterator[str]:
    own = [d for d in story.decisions if d.who == WHO]
    taken = [frozenset(d.data["actions"]) for d in own]
    rest = iter(taken)
    for wanted in expected.actions:
        if not any(wanted <= actions for actions in rest):
            yield f"not decided: {' and '.join(sorted(wanted))} (but {_words(taken)})"
            break
    if not expected.actions and taken:
        yield f"decided {_words(taken)}, which nothing called for"
    if expected.alone and len(taken) > len(expected.actions):
        yield f"decided more than it should: {_words(taken)}"
    for decision in own:
        priced = "steps_lost" in decision.data["price"] or "stop" in decision.data["actions"]
        if not (decision.reason and priced):
            yield f"the decision at step {decision.step} has no reason or no price"
    # Budgets and cooldowns are counted from the ledger: nothing may be missing there.
    ledger, damaged = load_ledger(story.folder)
    if len(ledger.recoveries) != len(story.decisions) or damaged:
        yield f"the ledger knows {len(ledger.recoveries)} of {len(story.decisions)} recoveries"


def _booked(story: Timeline) -> Iterator[str]:
    """Every second, the lost steps, and a segment for each change of course."""
    spent, wall = time_spent(story.records), wall_seconds(story.records)
    if abs(sum(spent.values()) - wall) > 0.02 * wall + 0.2:
        yield f"{sum(spent.values()):.2f} s are booked of {wall:.2f} s"
    back = [d for d in story.decisions if d.data.get("rollback")]
    lost = sum(d.data["rollback"]["from"] - d.data["rollback"]["to"] for d in back)
    redone = sum(step.redone for step in story.steps)
    if story.codes[-1] == 0 and len(story.codes) == 1 and redone > lost:
        yield f"{redone} steps are marked as redone, and {lost} were lost"
    if lost and not redone and story.codes[-1] == 0:
        yield "no step is marked as redone after a rollback"
    if len(story.codes) > 1:
        return  # what was killed in between may not have come to it
    reasons = {segment.reason for segment in read_segments(story.folder)}
    for decision in back:
        if decision.reason not in reasons:
            yield f"no segment tells of the rollback decided at step {decision.step}"


def _words(taken: list[frozenset[str]]) -> str:
    return "; ".join(" + ".join(sorted(actions)) for actions in taken) or "nothing"
