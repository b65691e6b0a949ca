"""Which records a person should be called for, and how often a person may be called."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from longhaul.core.addresses import scrubbed
from longhaul.core.errors import ExitCode
from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Finding, Record, Severity
from longhaul.core.units import Seconds
from longhaul.logbook.description import event_in_words, recovery_in_words

_HOUR_S: Seconds = 3600.0
_OTHERS = {
    EventKind.CHECKPOINT_FAILED: "A checkpoint could not be written",
    EventKind.OUT_OF_MEMORY: "A rank ran out of memory",
}
"""Events that the report tells in incidents of its own."""
_ENDS: Mapping[int | None, tuple[Severity, str]] = {
    None: ("alarm", "The supervisor died; workers save and end, and nobody starts them again"),
    ExitCode.FINISHED: ("notice", "The run is finished"),
    ExitCode.START_AGAIN: ("warning", "Stopped in a good state; start the same command again"),
    ExitCode.NEEDS_PERSON: ("alarm", "Stopped, because going on would do harm: a person must look"),
}


@dataclass(frozen=True)
class Incident:
    """Something to call a person for, as it is sent."""

    kind: Literal["finding", "decision", "event", "end"]
    what: str
    """Kind of finding, decision or event; for an end its exit code, or `died`."""
    severity: Severity
    time: Seconds
    text: str
    """One line."""
    attempt: int = 0
    segment: str = ""
    step: int = 0

    @property
    def is_end(self) -> bool:
        """Training has ended."""
        return self.kind == "end"


def incident_of(record: Record) -> Incident | None:
    """What to call for; None for what goes as it should, and for what a person did himself."""
    if isinstance(record, Finding) and record.severity == "alarm":
        return _incident("finding", record.kind, "alarm", record, record.sentence)
    if isinstance(record, Decision) and record.kind == "recover":
        done = ", ".join(recovery_in_words(record.data))
        text = f"Decided after {record.data.get('cause')}: {done}. {record.reason}"
        return _incident("decision", "recover", "warning", record, text)
    if not isinstance(record, Event):
        return None
    data, kind = record.data, record.kind
    if kind in _OTHERS:
        why = data.get("message") or data.get("text") or data.get("reason") or ""
        return _incident("event", kind, "warning", record, f"{_OTHERS[EventKind(kind)]}: {why}")
    if kind == EventKind.ATTEMPT_ENDED and "cause" in data:
        text = f"Failed at step {data.get('reached') or 0}: {data.get('reason')}"
        return _incident("event", kind, "warning", record, f"{text}; then {data.get('follows')}")
    toned = event_in_words(record) if kind != EventKind.REQUEST_REFUSED else None
    if toned is None or toned[0] not in ("warning", "alarm"):
        return None
    return _incident("event", kind, "alarm" if toned[0] == "alarm" else "warning", record, toned[1])


def incident_of_end(exit_code: int | None, time: Seconds, last: Event | None = None) -> Incident:
    """That training has ended with this code; None: the supervisor left none. `last`: what the
    last attempt wrote of it.
    """
    other: tuple[Severity, str] = ("alarm", f"Ended with exit code {exit_code}")
    severity, text = _ENDS.get(exit_code, other)
    what = "died" if exit_code is None else str(int(exit_code))
    if last is None:
        return Incident("end", what, severity, time, text)
    toned = event_in_words(last)
    words = [*([] if exit_code == ExitCode.FINISHED else [text]), *([toned[1]] if toned else [])]
    line = " ".join(scrubbed(". ".join(words)).split())
    return Incident("end", what, severity, time, line, last.attempt, last.segment, last.step)


def _incident(
    kind: Literal["finding", "decision", "event"],
    what: str,
    severity: Severity,
    record: Record,
    text: str,
) -> Incident:
    line = " ".join(scrubbed(text).split())
    return Incident(
        kind, str(what), severity, record.time, line, record.attempt, record.segment, record.step
    )


@dataclass
class RateLimit:
    """Lets so many calls an hour pass, the last of which is kept for the end of training. What does
    not pass is counted, and the worst of it, the latest of equals, is called for once it can be.
    """

    per_hour: int
    called: list[Seconds] = field(default_factory=list)
    """Unix times of the calls of the last hour."""
    held: Incident | None = None
    suppressed: int = 0
    """Incidents that were not called for since the last call, without `held`."""

    def add(self, incident: Incident) -> None:
        """Something to call for."""
        if self.held is None:
            self.held = incident
            return
        self.suppressed += 1
        worse = incident.is_end or incident.severity == "alarm" or self.held.severity != "alarm"
        if worse and not self.held.is_end:
            self.held = incident

    def due(self, now: Seconds) -> tuple[Incident, int] | None:
        """What to call for now, and how many others it stands for; None if nothing may be."""
        # A clock that was set back must not silence anybody for longer than an hour.
        self.called = [time for time in self.called if 0 <= now - time < _HOUR_S]
        most = self.per_hour if self.held and self.held.is_end else max(1, self.per_hour - 1)
        if self.held is None or len(self.called) >= most:
            return None
        found, self.held, self.suppressed = (self.held, self.suppressed), None, 0
        self.called.append(now)
        return found


def body_of(incident: Incident, run: str, host: str, suppressed: int) -> dict[str, Any]:
    """What a command reads and a webhook is sent; `text` is a sentence of its own."""
    at = f", step {incident.step:,}" if incident.step else ""
    more = f" (and {suppressed} more incidents before)" if suppressed else ""
    return {
        "format": 1,
        "text": f"longhaul {run}{at}: {incident.text}{more}",
        "run": run, "host": host, "severity": incident.severity, "kind": incident.kind,
        "what": incident.what, "sentence": incident.text, "attempt": incident.attempt,
        "segment": incident.segment, "step": incident.step, "time": incident.time,
        "suppressed": suppressed,
    }  # fmt: skip
