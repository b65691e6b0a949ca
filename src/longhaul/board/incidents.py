"""What went wrong in a run, and what was done about it, one row an incident."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Finding, Record
from longhaul.core.units import Seconds

AUTOMATIC = ("policy", "pilot")
"""Who decides without a person."""

Tone = Literal["notice", "warning", "alarm"]


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One thing that went wrong, or was reported as odd."""

    kind: str
    """That of a finding, or `process died`, `checkpoint failed`."""
    subject: str = ""
    tone: Tone
    time: Seconds
    segment: str
    step: int
    first_step: int
    """First sign of it."""
    times: int = 1
    """How often the same was found before anything was done."""
    sentence: str
    """What was seen."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    """Kinds of other findings that were dealt with together."""
    actions: tuple[str, ...] = ()
    """What was done; empty if it was reported only."""
    cause: str = ""
    """What replays of the steps told before anything was done; empty if none were made."""
    rungs: Mapping[str, float] = field(default_factory=dict)
    """Replay → loss or gradient norm that it came to."""
    decision: Decision | None = None
    """That did it."""
    price: Mapping[str, float] = field(default_factory=dict)


def incidents(records: Sequence[Record]) -> tuple[Incident, ...]:
    """The run's incidents, in order of time.

    A recovery takes in every finding since the one before it that points at the steps it acts
    on; a finding that led to nothing stands for itself, together with its repetitions.
    """
    found: list[Incident] = []
    waiting: list[Finding] = []
    looked: Event | None = None
    for number, record in enumerate(records):
        if isinstance(record, Finding):
            waiting.append(record)
        elif isinstance(record, Decision) and record.kind == "recover":
            found += _of_recovery(record, waiting, looked)
            waiting, looked = [], None
        elif isinstance(record, Event):
            if record.kind == EventKind.CAUSE:
                looked = record
            elif record.kind == EventKind.CHECKPOINT_FAILED:
                found.append(_of_checkpoint(record))
            elif record.kind == EventKind.ATTEMPT_STARTED and (
                lost := _of_death(records[:number], record)
            ):
                found += [*_reported(waiting), lost]
                waiting = []
    return tuple(sorted([*found, *_reported(waiting)], key=lambda incident: incident.time))


def _of_recovery(
    decision: Decision, waiting: Sequence[Finding], looked: Event | None
) -> list[Incident]:
    data = decision.data
    verdict = data.get("verdict") or {}
    cause, subject = str(data.get("cause", "")), str(data.get("subject", ""))
    own = [f for f in waiting if f.kind == cause and subject in ("", f.subject)]
    acted_on = [f for f in waiting if f in own or f.severity != "notice"] if own else []
    rest = [f for f in waiting if f not in acted_on]
    first = own[0] if own else None
    incident = Incident(
        kind="asked by" if cause == "asked" else cause or "rollback",
        subject=subject,
        tone=max((f.severity for f in own), key=_TONES.index, default="notice"),
        time=first.time if first else decision.time,
        segment=decision.segment,
        step=first.step if first else decision.step,
        first_step=min((f.first_step for f in own), default=decision.step),
        times=max(len(own), 1),
        sentence=first.sentence if first else _own_words(decision),
        evidence=first.evidence if first else {},
        also=tuple(sorted({f.kind for f in acted_on} - {cause})),
        actions=action_words(data),
        cause=f"{verdict['cause']}: {verdict['sentence']}" if verdict else "",
        rungs=_numbers(looked.data.get("rungs", {})) if verdict and looked else {},
        decision=decision,
        price=_numbers(data.get("price", {})),
    )
    return [*_reported(rest), incident]


def _own_words(decision: Decision) -> str:
    """Why, where no finding says it: the policy acts on health too, and people as they like."""
    if decision.who in AUTOMATIC:
        return decision.reason
    return f"{decision.who} asked for it: {decision.reason}"


def action_words(data: Mapping[str, Any]) -> tuple[str, ...]:
    """What a decision `recover` does, one phrase an action."""
    words = []
    if rollback := data.get("rollback"):
        words.append(f"rolled back from step {rollback['from']:,} to {rollback['to']:,}")
    if skip := data.get("skip"):
        words.append(f"skipped blocks {skip['begin']:,} to {skip['end']:,} of the data")
    old = data.get("old", {})
    for path, value in data.get("set", {}).items():
        words.append(f"{path} {_shown(old.get(path))} → {_shown(value)}")
    if reset := data.get("reset"):
        steps = int(data.get("rewarm_steps", 0) or 0)
        warm = f", fresh warm-up over {steps:,} steps" if steps else ""
        words.append(f"reset {' and '.join(reset)}{warm}")
    if data.get("fallback"):
        words.append(f"plan B “{data['fallback']}”")
    if poison := data.get("poison"):
        words.append(f"{len(poison)} checkpoint{'s' * (len(poison) != 1)} marked poisoned")
    return tuple(words) or tuple(map(str, data.get("actions", ())))


def _reported(findings: Sequence[Finding]) -> list[Incident]:
    groups: dict[tuple[str, str, str], Incident] = {}
    for finding in findings:
        key = (finding.kind, finding.subject, finding.segment)
        if key in groups:
            groups[key] = replace(groups[key], times=groups[key].times + 1)
            continue
        groups[key] = Incident(
            kind=finding.kind, subject=finding.subject, tone=finding.severity, time=finding.time,
            segment=finding.segment, step=finding.step, first_step=finding.first_step,
            sentence=finding.sentence, evidence=finding.evidence,
        )  # fmt: skip
    return list(groups.values())


def _of_death(before: Sequence[Record], started: Event) -> Incident | None:
    """An attempt that ended without a word, seen when the next one starts."""
    last = [e for e in before if isinstance(e, Event) and e.attempt < started.attempt]
    starts = [e for e in last if e.kind == EventKind.ATTEMPT_STARTED]
    if not starts or any(
        e.kind == EventKind.ATTEMPT_ENDED and e.attempt == starts[-1].attempt for e in last
    ):
        return None
    reached = int(started.data.get("steps_made", 0))
    resumed = started.data.get("resumed_from")
    of = "a snapshot of step" if started.data.get("resumed_in") == "memory" else "checkpoint"
    from_where = f"{of} {resumed:,}" if isinstance(resumed, int) else "the beginning"
    lost = max(reached - int(resumed or 0), 0)
    since = [e for e in before if isinstance(e, Event) and e.attempt == started.attempt]
    # The first record of an attempt books the time since the last one of the attempt before.
    begin = (since or [started])[0]
    idle = begin.seconds.get("idle", 0.0)
    return Incident(
        kind="process died", tone="alarm", segment=last[-1].segment,
        time=begin.time - sum(begin.seconds.values()), step=reached, first_step=reached,
        sentence=f"Attempt {starts[-1].attempt} ended at step {reached:,} without a word.",
        actions=(f"restarted from {from_where} as attempt {started.attempt}",),
        price={"steps_lost": float(lost)} | ({"idle_seconds": idle} if idle else {}),
    )  # fmt: skip


def _of_checkpoint(event: Event) -> Incident:
    return Incident(
        kind="checkpoint failed", tone="warning", time=event.time, segment=event.segment,
        step=event.step, first_step=event.step,
        sentence=str(event.data.get("message") or "A checkpoint could not be written."),
    )  # fmt: skip


_TONES: tuple[Tone, ...] = ("notice", "warning", "alarm")


def _numbers(price: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in price.items() if isinstance(value, int | float)}


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
