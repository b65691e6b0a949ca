"""A record in words, for the terminal, the log, the report and its chronicle alike."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from longhaul.core.addresses import scrubbed
from longhaul.core.clocks import tokens_per_second
from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Finding, Record, StepRecord
from longhaul.core.units import loss_in_words, short_bytes, short_count, short_seconds

_IMPLIED = {"record", "request"}
"""Keys of an event's data that tell a person nothing."""


def readable_line(record: Record) -> str:
    """Time, segment and step, and then what happened."""
    at = time.strftime("%m-%d %H:%M:%S", time.localtime(record.time))
    what = " ".join(scrubbed(_what(record)).split())  # a person's note may have several lines
    return f"{at} {record.segment or '–':>5} {record.step:>7,}  {what}"


def _what(record: Record) -> str:
    if isinstance(record, StepRecord):
        return _step(record)
    if isinstance(record, Decision):
        told = record.reason and record.reason != record.data.get("health")
        reason = f": {record.reason}" if told else ""
        return f"* {_decision(record)} by {record.who}{reason}"
    if isinstance(record, Finding):
        return f"! {record.kind} ({record.severity}): {record.sentence}"
    return f"- {event_line(record)}"


def _step(record: StepRecord) -> str:
    rate = tokens_per_second(record)
    parts = [
        f"loss {record.loss:.4f}",
        f"lr {record.learning_rate:.2e}",
        f"norm {record.gradient_norm:.3g}",
        "" if rate != rate else f"{short_count(rate)} tok/s",
        "masked" if record.masked else "",
        "redone" if record.redone else "",
    ]
    return " ".join(part for part in parts if part)


def _decision(decision: Decision) -> str:
    data = decision.data
    if decision.kind == "set":
        old = f"{data['old']} → " if data.get("old") is not None else ""
        since = f" from step {decision.from_step:,}" if decision.from_step else ""
        return f"set {data.get('path')}: {old}{data.get('value')}{since}"
    if decision.kind == "unset":
        return f"unset {data.get('path')}, which was {data.get('old')},"
    if decision.kind == "skip":
        return f"skip draws {data.get('begin')} to {data.get('end')}"
    if decision.kind == "recover":
        return (
            f"{', '.join(data['actions'])} after {data['cause']} {data.get('subject', '')}".rstrip()
        )
    if decision.kind == "restart":
        pairs = {**data.get("settings", {}), **data.get("surroundings", {})}
        changed = ", ".join(f"{path} {old} → {new}" for path, (old, new) in pairs.items())
        return f"went on with {changed}" if changed else "went on from before a change"
    if decision.kind == "checkpoint-health":
        return f"checkpoint {data.get('checkpoint')} is {data.get('health')}"
    return f"{decision.kind} {_pairs(data)}".rstrip()


def event_line(event: Event) -> str:
    """An event without its time and place."""
    data = event.data
    if event.kind == EventKind.EVALUATION and "loss" in data:
        bits = data.get("bits_per_byte")
        shown = loss_in_words(float(data["loss"]), None if bits is None else float(bits))
        return f"validation loss {shown}{_per_source(data)}{_halved(data)}"
    if event.kind == EventKind.ATTEMPT_STARTED:
        resumed = data.get("resumed_from")
        of = "a snapshot in memory of step" if data.get("resumed_in") == "memory" else "checkpoint"
        begin = f"from {of} {resumed}" if resumed is not None else "from nothing"
        by = f"process {data.get('pid')} on {data.get('host')}"
        return f"attempt {event.attempt} started {begin} ({by})"
    if event.kind == EventKind.CHECKPOINT and not data.get("message"):
        size, seconds = float(data.get("size_bytes", 0)), float(data.get("seconds_since_save", 0))
        return (
            f"checkpoint {event.step}: {short_bytes(size)} {data.get('health')} in {seconds:.1f} s"
        )
    if event.kind == EventKind.CAUSE:
        steps = data.get("replayed_steps")
        told = f" (replays of {steps} steps)" if steps else ""
        return f"cause: {data.get('cause')}: {data.get('reason')}{told}"
    if event.kind == EventKind.MACHINE_DIFFERS and isinstance(data.get("difference"), Mapping):
        changed = [f"{path} {old} → {new}" for path, (old, new) in data["difference"].items()]
        return f"machine or software differ from before: {', '.join(changed)}"
    if event.kind == EventKind.SETTINGS_DIFFER and isinstance(data.get("difference"), Mapping):
        changed = [f"{path} {old} → {new}" for path, (old, new) in data["difference"].items()]
        return f"settings differ from the checkpoint's: {', '.join(changed)}"
    for key in ("message", "text", "reason"):
        if isinstance(data.get(key), str):
            who = f" by {data['who']}" if data.get("who") else ""
            return f"{event.kind}{who}: {data[key]}"
    if (telling := event_in_words(event)) is not None:
        return f"{event.kind}: {telling[1]}"
    return f"{event.kind} {_pairs(data)}".rstrip()


def _per_source(evaluation: Mapping[str, Any]) -> str:
    sources = evaluation.get("sources") or {}
    if len(sources) < 2:
        return ""
    return " (" + ", ".join(f"{name} {float(loss):.4f}" for name, loss in sources.items()) + ")"


def _halved(evaluation: Mapping[str, Any]) -> str:
    """Whether an evaluation ran out of memory on its way; empty if it did not."""
    more = evaluation.get("did_not_fit")
    if not more:
        return ""
    return f" ({evaluation.get('at_once')} sequences at once; memory ran out with {more})"


def _pairs(data: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in data.items() if key not in _IMPLIED)


Tone = Literal["plain", "good", "notice", "warning", "alarm"]
Telling = tuple[Tone, str]


def decision_in_words(decision: Decision) -> str:
    """What was decided, by whom and why; empty where nothing is to be told."""
    data, who, text = decision.data, decision.who, ""
    if decision.kind == "set":
        text = f"{who} set {data.get('path')} {arrow(data.get('old'), data.get('value'))}"
        text += f" from step {decision.from_step:,} on" if decision.from_step else ""
    elif decision.kind == "unset":
        text = f"{who} gave {data.get('path')} its value of the recipe back"
    elif decision.kind == "skip":
        text = f"{who} skipped blocks {data.get('begin')} to {data.get('end')} of the data"
    elif decision.kind == "stop":
        text = f"{who} asked it to stop"
    elif decision.kind == "checkpoint-health" and data.get("health") == "poisoned":
        text = f"Checkpoint {data.get('checkpoint')} will not be used"
    return f"{text}: {decision.reason}" if text and decision.reason else text


def event_in_words(event: Event) -> Telling | None:
    """Tone and sentence of an event; None where nothing is to be told."""
    teller = _TELLERS.get(event.kind)
    at = {"step": event.step, "attempt": event.attempt}
    return None if teller is None else teller({**event.data, **at})


def arrow(old: Any, new: Any) -> str:
    """A value before and after, each shortened to fit a line."""
    return f"{short_value(old)} → {short_value(new)}"


def short_value(value: Any) -> str:
    """A setting's value, shortened to fit a line; the files have the whole of it."""
    if value is None:
        return "none"
    text = f"{value:g}" if isinstance(value, float) else str(value) or "''"
    return text if len(text) <= 44 else f"{text[:43]}…"


def _note(data: Mapping[str, Any]) -> Telling:
    return "notice", f"Note by {data.get('who', 'somebody')}: {data.get('text', '')}"


def _refused(data: Mapping[str, Any]) -> Telling:
    reason = data.get("message") or data.get("reason") or ""
    return "warning", f"A request was refused: {reason}"


def _rolled_back(data: Mapping[str, Any]) -> Telling:
    took = short_seconds(float(data.get("took_s") or 0.0))
    where = data.get("where", "a checkpoint")
    return "plain", f"Back at step {data['step']:,} from {where} in {took}"


def _swapped(data: Mapping[str, Any]) -> Telling:
    return "notice", f"The optimizer was swapped: {arrow(data.get('old'), data.get('new'))}"


def _finished(data: Mapping[str, Any]) -> Telling:
    text = f"Finished after {data['step']:,} steps"
    if data.get("loss") is not None:
        text += f" with a validation loss of {float(data['loss']):.4f}"
    return "good", text


def _ended(data: Mapping[str, Any]) -> Telling | None:
    reason = str(data.get("reason", ""))
    if reason.startswith("finished"):
        return None
    return "plain", f"Attempt {data['attempt']} ended at step {data['step']:,}: {reason}"


def _world(data: Mapping[str, Any]) -> Telling | None:
    absent = data.get("absent") or {}
    if not absent:
        return None
    return "notice", "Without " + "; ".join(f"{name}: {why}" for name, why in absent.items())


def _verdict(data: Mapping[str, Any]) -> Telling | None:
    # A straggler is a finding too, and an incident of its own.
    return ("alarm", _reason(data)) if data.get("kind") == "corrupt" else None


def _probed(data: Mapping[str, Any]) -> Telling | None:
    if data.get("passed"):
        return None
    return "warning", f"Node {data.get('node')} did not pass its probe: {_reason(data)}"


def _ordered(data: Mapping[str, Any]) -> Telling:
    node = data.get("node")
    if node is None:
        return "warning", f"Another node was ordered, and none came: {_reason(data)}"
    return "notice", f"Node {node} was ordered, and has come"


def _brought_back(data: Mapping[str, Any]) -> Telling:
    lacking = data.get("lacking") or []
    text = (
        "Nothing of the run was left here: its run log was brought back from "
        f"{data.get('tier')} as attempt {data.get('of_attempt')} had left it"
    )
    if lacking:
        return "warning", f"{text}, but for {', '.join(map(str, lacking))}"
    return "notice", text


def _fetched(data: Mapping[str, Any]) -> Telling:
    took = short_seconds(float(data.get("took_s") or 0.0))
    return "notice", f"Its checkpoint was fetched from {data.get('tier')} in {took}"


def _replica_lost(data: Mapping[str, Any]) -> Telling:
    who = data.get("rank")
    return "warning", f"Replica {who} was lost, and the others trained on: {_reason(data)}"


def _replica_back(data: Mapping[str, Any]) -> Telling:
    away = short_seconds(float(data.get("away_s") or 0.0))
    who, peer = data.get("rank"), data.get("peer")
    return "notice", f"Replica {who} was back after {away}, with the state of replica {peer}"


def _because(tone: Tone, before: str) -> Callable[[Mapping[str, Any]], Telling]:
    return lambda data: (tone, f"{before}: {_reason(data)}")


def _of_node(tone: Tone, after: str) -> Callable[[Mapping[str, Any]], Telling]:
    return lambda data: (tone, f"Node {data.get('node')} {after}: {_reason(data)}")


def _reason(data: Mapping[str, Any]) -> str:
    return str(data.get("reason") or data.get("message") or "no reason is known")


_TELLERS: Mapping[str, Callable[[Mapping[str, Any]], Telling | None]] = {
    EventKind.NOTE: _note,
    EventKind.REQUEST_REFUSED: _refused,
    EventKind.WARNING: lambda data: ("warning", str(data.get("message", ""))),
    EventKind.ROLLED_BACK: _rolled_back,
    EventKind.OPTIMIZER_SWAPPED: _swapped,
    EventKind.FINISHED: _finished,
    EventKind.ATTEMPT_ENDED: _ended,
    EventKind.ATTEMPT_BEGAN: _world,
    EventKind.MACHINE_VERDICT: _verdict,
    EventKind.NODE_PROBED: _probed,
    EventKind.NODE_REFUSED: _of_node("warning", "was refused"),
    EventKind.NODE_ORDERED: _ordered,
    EventKind.NODE_AWAITED: _because("warning", "There was no node to go on with, and it waited"),
    EventKind.NODE_DRAINED: _because("notice", "All were started again at a checkpoint"),
    EventKind.BROUGHT_BACK: _brought_back,
    EventKind.FETCHED: _fetched,
    EventKind.STORE_AWAY: _because("warning", "A store did not answer"),
    EventKind.STORE_BACK: lambda data: ("notice", f"{data.get('tier')} answered again"),
    EventKind.STORE_TAKEN: _because("alarm", "A store was taken over"),
    EventKind.UPLOAD_DROPPED: _because("warning", "A checkpoint was not sent"),
    EventKind.PAUSED: _because("alarm", "It paused"),
    EventKind.RESUMED: _because("notice", "It went on"),
    EventKind.REPLICA_LOST: _replica_lost,
    EventKind.REPLICA_BACK: _replica_back,
    EventKind.HEALED: lambda data: (
        "notice",
        f"Replica 0 was back, with the state of replica {data.get('peer')}",
    ),
    EventKind.PREEMPTION_MISSED: _because("alarm", "A notice was missed"),
}
