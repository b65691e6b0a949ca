"""What went wrong in a run, and what was done about it, one row an incident."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Finding, Record, Severity
from longhaul.core.units import Seconds
from longhaul.logbook.description import recovery_in_words, resumed_in_words

AUTOMATIC = ("policy", "pilot")
"""Who decides without a person."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One thing that went wrong, or was reported as odd."""

    kind: str
    """That of a finding, or `process died`, `attempt failed`, `checkpoint failed`."""
    subject: str = ""
    tone: Severity
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
                why = str(record.data.get("message") or "A checkpoint could not be written.")
                found.append(
                    Incident(
                        kind="checkpoint failed", tone="warning", time=record.time, sentence=why,
                        segment=record.segment, step=record.step, first_step=record.step,
                    )
                )  # fmt: skip
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
    # The policy acts on health too, and people as they like.
    by_a_person = decision.who not in AUTOMATIC
    asked = f"{decision.who} asked for it: " * by_a_person + decision.reason
    incident = Incident(
        kind="asked by" if cause == "asked" else cause or "rollback",
        subject=subject,
        tone=max((f.severity for f in own), key=_TONES.index, default="notice"),
        time=first.time if first else decision.time,
        segment=decision.segment,
        step=first.step if first else decision.step,
        first_step=min((f.first_step for f in own), default=decision.step),
        times=max(len(own), 1),
        sentence=first.sentence if first else asked,
        evidence=first.evidence if first else {},
        also=tuple(sorted({f.kind for f in acted_on} - {cause})),
        actions=recovery_in_words(data),
        cause=f"{verdict['cause']}: {verdict['sentence']}" if verdict else "",
        rungs=_numbers(looked.data.get("rungs", {})) if verdict and looked else {},
        decision=decision,
        price=_numbers(data.get("price", {})),
    )
    return [*_reported(rest), incident]


def _reported(findings: Sequence[Finding]) -> list[Incident]:
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.subject, finding.segment), []).append(finding)
    return [
        Incident(
            kind=first.kind, subject=first.subject, tone=first.severity, time=first.time,
            segment=first.segment, step=first.step, first_step=first.first_step,
            times=1 + len(others), sentence=first.sentence, evidence=first.evidence,
        )
        for first, *others in groups.values()
    ]  # fmt: skip


def _of_death(before: Sequence[Record], started: Event) -> Incident | None:
    """An attempt that failed, or ended without a word, seen when the next one starts."""
    last = [e for e in before if isinstance(e, Event) and e.attempt < started.attempt]
    starts = [e for e in last if e.kind == EventKind.ATTEMPT_STARTED]
    if not starts:
        return None
    attempt = starts[-1].attempt
    ends = [e for e in last if e.kind == EventKind.ATTEMPT_ENDED and e.attempt == attempt]
    if ends and "cause" not in ends[-1].data:
        return None
    reached = int(started.data.get("steps_made", 0))
    lost = max(reached - int(started.data.get("resumed_from") or 0), 0)
    resumed = resumed_in_words(started.data)
    # The first record of an attempt books the time since the last one of the attempt before.
    since = (e for e in before if isinstance(e, Event) and e.attempt == started.attempt)
    begin = next(since, started)
    idle = begin.seconds.get("idle", 0.0)
    why = f"Attempt {attempt} ended at step {reached:,} without a word."
    if ends:
        why = f"Attempt {attempt} failed at step {reached:,}: {ends[-1].data.get('reason')}"
    return Incident(
        kind="attempt failed" if ends else "process died", tone="alarm", segment=last[-1].segment,
        subject=str(ends[-1].data["cause"]) if ends else "",
        time=ends[-1].time if ends else begin.time - sum(begin.seconds.values()),
        step=reached, first_step=reached, sentence=why,
        actions=(f"restarted from {resumed} as attempt {started.attempt}",),
        price={"steps_lost": float(lost)} | ({"idle_seconds": idle} if idle else {}),
    )  # fmt: skip


_TONES: tuple[Severity, ...] = get_args(Severity)


def _numbers(price: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in price.items() if isinstance(value, int | float)}
