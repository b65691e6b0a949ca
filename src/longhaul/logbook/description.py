"""A record in words, for the terminal, the log, the report and its chronicle alike."""

import time
from collections import defaultdict
from collections.abc import Mapping
from textwrap import shorten
from typing import Any, Literal

from longhaul.core.addresses import scrubbed
from longhaul.core.clocks import tokens_per_second
from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Finding, Record, StepRecord
from longhaul.core.units import count, loss_in_words, short_bytes, short_count, short_seconds

Tone = Literal["plain", "good", "notice", "warning", "alarm"]
_MOST_OF_A_SAMPLE = 100
"""Characters of it in a line."""
_IMPLIED = {"record", "request"}
"""Keys of an event's data that tell a person nothing."""


def readable_line(record: Record) -> str:
    """Time, segment and step, and then what happened."""
    at = time.strftime("%m-%d %H:%M:%S", time.localtime(record.time))
    if isinstance(record, StepRecord):
        what = _step_in_words(record)
    elif isinstance(record, Decision):
        what = f"* {_decided(record)}"
    elif isinstance(record, Finding):
        what = f"! {record.kind} ({record.severity}): {record.sentence}"
    else:
        what = f"- {event_line(record)}"
    what = " ".join(scrubbed(what).split())  # a person's note may have several lines
    return f"{at} {record.segment or '–':>5} {record.step:>7,}  {what}"


def _step_in_words(record: StepRecord) -> str:
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


def decision_in_words(decision: Decision) -> str:
    """What was decided, by whom and why; empty where an incident or a segment tells of it."""
    used = decision.kind == "checkpoint-health" and decision.data.get("health") != "poisoned"
    return "" if used or decision.kind in ("recover", "restart") else _decided(decision)


def _decided(decision: Decision) -> str:
    data, who, reason = decision.data, decision.who, decision.reason
    match decision.kind:
        case "set":
            since = f" from step {decision.from_step:,} on" if decision.from_step else ""
            old, new = data.get("old"), data.get("value")
            change = f"to {short_value(new)}" if old is None else arrow(old, new)
            text = f"{who} set {data.get('path')} {change}{since}"
        case "unset":
            was = "" if data.get("old") is None else f", which was {short_value(data['old'])}"
            text = f"{who} gave {data.get('path')}{was}, its value of the recipe back"
        case "skip":
            text = f"{who} skipped blocks {data.get('begin')} to {data.get('end')} of the data"
        case "mixture":
            old, new = data["old"], data["new"]
            shares = [
                f"{name} {old.get(name, 0.0):.2%} → {new.get(name, 0.0):.2%}"
                for name in dict.fromkeys([*old, *new])
            ]
            text = f"{who} changed the mixture from draw {data['from_draw']:,} on: "
            text += ", ".join(shares)
        case "stop":
            text = f"{who} asked it to stop"
        case "checkpoint-health" if data.get("health") == "poisoned":
            text = f"Checkpoint {data.get('checkpoint')} will not be used"
        case "checkpoint-health":
            text = f"Checkpoint {data.get('checkpoint')} is {data.get('health')}"
            reason = "" if reason == data.get("health") else reason
        case "recover":
            after = f"{data['cause']} {data.get('subject', '')}".rstrip()
            text = f"{who} decided {', '.join(data['actions'])} after {after}"
        case "restart":
            pairs = {**data.get("settings", {}), **data.get("surroundings", {})}
            text = f"{who} went on {f'with {changes_in_words(pairs)}' if pairs else 'from before'}"
        case kind:
            text = f"{who} decided {kind} {_pairs(data)}".rstrip()
    return f"{text}: {reason}" if reason else text


def recovery_in_words(data: Mapping[str, Any]) -> tuple[str, ...]:
    """What a decision `recover` with this data does, one phrase an action."""
    words = []
    if rollback := data.get("rollback"):
        words.append(f"rolled back from step {rollback['from']:,} to {rollback['to']:,}")
    if skip := data.get("skip"):
        words.append(f"skipped blocks {skip['begin']:,} to {skip['end']:,} of the data")
    old = data.get("old", {})
    words += [
        f"{path} {arrow(old.get(path), value)}" for path, value in data.get("set", {}).items()
    ]
    if reset := data.get("reset"):
        steps = int(data.get("rewarm_steps", 0) or 0)
        warm = f", fresh warm-up over {steps:,} steps" if steps else ""
        words.append(f"reset {' and '.join(reset)}{warm}")
    if data.get("fallback"):
        words.append(f"plan B “{data['fallback']}”")
    if poison := data.get("poison"):
        words.append(f"{count(len(poison), 'checkpoint')} marked poisoned")
    return tuple(words) or tuple(map(str, data.get("actions", ())))


def event_line(event: Event) -> str:
    """An event without its time and place; every one has its line in the log."""
    data = event.data
    match event.kind:
        case EventKind.EVALUATION if "loss" in data:
            return f"validation loss {evaluation_in_words(data)}"
        case EventKind.SAMPLE if data.get("text"):
            return f"sample: {shorten(str(data['text']), _MOST_OF_A_SAMPLE, placeholder=' …')}"
        case EventKind.ATTEMPT_STARTED:
            by = f"process {data.get('pid')} on {data.get('host')}"
            return f"attempt {event.attempt} started from {resumed_in_words(data)} ({by})"
        case EventKind.CHECKPOINT if not data.get("message"):
            size, seconds = data.get("size_bytes", 0), float(data.get("seconds_since_save", 0))
            made = f"{short_bytes(float(size))} {data.get('health')} in {seconds:.1f} s"
            return f"checkpoint {event.step}: {made}"
        case EventKind.CAUSE:
            steps = data.get("replayed_steps")
            replays = f" (replays of {steps} steps)" if steps else ""
            return f"cause: {data.get('cause')}: {data.get('reason')}{replays}"
        case EventKind.MACHINE_DIFFERS if isinstance(data.get("difference"), Mapping):
            changed = changes_in_words(data["difference"])
            return f"machine or software differ from before: {changed}"
        case EventKind.SETTINGS_DIFFER if isinstance(data.get("difference"), Mapping):
            changed = changes_in_words(data["difference"])
            return f"settings differ from the checkpoint's: {changed}"
    if (toned := event_in_words(event)) is not None:
        return toned[1]
    told = next(
        (data[k] for k in ("message", "text", "reason") if isinstance(data.get(k), str)), ""
    )
    return f"{event.kind}: {told}" if told else f"{event.kind} {_pairs(data)}".rstrip()


def evaluation_in_words(data: Mapping[str, Any]) -> str:
    """The held-out loss, by source too, and whether memory ran out on the way."""
    bits, more = data.get("bits_per_byte"), data.get("did_not_fit")
    shown = loss_in_words(float(data["loss"]), None if bits is None else float(bits))
    sources = data.get("sources") or {}
    if len(sources) > 1:
        shown += f" ({', '.join(f'{name} {float(loss):.4f}' for name, loss in sources.items())})"
    if not more:
        return shown
    return f"{shown} ({data.get('at_once')} sequences at once; memory ran out with {more})"


def resumed_in_words(started: Mapping[str, Any]) -> str:
    """What an attempt that has `started` goes on from."""
    step = started.get("resumed_from")
    if step is None:
        return "nothing"
    in_memory = started.get("resumed_in") == "memory"
    return f"a snapshot in memory of step {step:,}" if in_memory else f"checkpoint {step}"


_TOLD: Mapping[str, tuple[Tone, str]] = {
    EventKind.NOTE: ("notice", "Note by {who}: {text}"),
    EventKind.REQUEST_REFUSED: ("warning", "A request was refused: {message}"),
    EventKind.WARNING: ("warning", "Warning: {message}"),
    EventKind.ROLLED_BACK: ("plain", "Back at step {step:,} from {where} in {took_s}"),
    EventKind.OPTIMIZER_SWAPPED: ("notice", "The optimizer was swapped: {old} → {new}"),
    EventKind.FINISHED: ("good", "Finished after {step:,} steps{loss}"),
    EventKind.ATTEMPT_ENDED: ("plain", "Attempt {attempt} ended at step {step:,}: {reason}"),
    EventKind.ATTEMPT_BEGAN: ("notice", "Without {absent}"),
    EventKind.MACHINE_VERDICT: ("alarm", "{reason}"),
    EventKind.DATA_CHANGED: ("warning", "From here on losses are judged by their new level"),
    EventKind.NODE_PROBED: ("warning", "Node {node} did not pass its probe: {reason}"),
    EventKind.NODE_REFUSED: ("warning", "Node {node} was refused: {reason}"),
    EventKind.NODE_AWAITED: ("warning", "There was no node to go on with, and it waited: {reason}"),
    EventKind.NODE_DRAINED: ("notice", "All were started again at a checkpoint: {reason}"),
    EventKind.FETCHED: ("notice", "Its checkpoint was fetched from {tier} in {took_s}"),
    EventKind.MOVED: ("notice", "It was moved from {source} to {destination}: {reason}"),
    EventKind.STORE_AWAY: ("warning", "A store did not answer: {reason}"),
    EventKind.STORE_BACK: ("notice", "{tier} answered again"),
    EventKind.STORE_TAKEN: ("alarm", "A store was taken over: {reason}"),
    EventKind.UPLOAD_DROPPED: ("warning", "A checkpoint was not sent: {reason}"),
    EventKind.PAUSED: ("alarm", "It paused: {reason}"),
    EventKind.RESUMED: ("notice", "It went on: {reason}"),
    EventKind.REPLICA_LOST: (
        "warning",
        "Replica {rank} was lost, and the others trained on: {reason}",
    ),
    EventKind.REPLICA_BACK: (
        "notice",
        "Replica {rank} was back after {away_s}, with the state of replica {peer}",
    ),
    EventKind.HEALED: ("notice", "Replica 0 was back, with the state of replica {peer}"),
    EventKind.SIDECAR: ("notice", "Beside training: {text}"),
    EventKind.PREEMPTION_MISSED: ("alarm", "A notice was missed: {reason}"),
}
"""Kind of event → tone, and sentence with what `data` carries."""


def event_in_words(event: Event) -> tuple[Tone, str] | None:
    """Tone and sentence of an event; None where it is as it should be, or told elsewhere."""
    data = event.data
    match event.kind:
        case EventKind.COMPILED if data.get("message"):
            return "warning", f"Compilation fell short: {data['message']}"
        case EventKind.NODE_ORDERED if data.get("node") is None:
            return "warning", f"Another node was ordered, and none came: {_reason(data)}"
        case EventKind.NODE_ORDERED:
            return "notice", f"Node {data['node']} was ordered, and has come"
        case EventKind.BROUGHT_BACK:
            lacking = ", ".join(map(str, data.get("lacking") or ()))
            text = (
                "Nothing of the run was left here: its run log was brought back from "
                f"{data.get('tier')} as attempt {data.get('of_attempt')} had left it"
            )
            return ("warning", f"{text}, but for {lacking}") if lacking else ("notice", text)
    as_it_should_be = (
        (event.kind == EventKind.ATTEMPT_ENDED and _reason(data).startswith("finished"))
        or (event.kind == EventKind.ATTEMPT_BEGAN and not data.get("absent"))
        # A straggler is a finding too, and an incident of its own.
        or (event.kind == EventKind.MACHINE_VERDICT and data.get("kind") != "corrupt")
        or (event.kind == EventKind.NODE_PROBED and data.get("passed"))
    )
    if as_it_should_be or event.kind not in _TOLD:
        return None
    tone, sentence = _TOLD[event.kind]
    return tone, sentence.format_map(_facts(event))


def _facts(event: Event) -> Mapping[str, Any]:
    """What a sentence may need of an event; other versions may have left something out."""
    data, loss = event.data, event.data.get("loss")
    took_s, away_s = (_number(data.get(key)) for key in ("took_s", "away_s"))
    absent = data.get("absent")
    gone = absent.items() if isinstance(absent, Mapping) else ()
    return defaultdict(
        lambda: "?", data,
        step=event.step, attempt=event.attempt, reason=_reason(data),
        message=data.get("message") or _reason(data),
        who=data.get("who", "somebody"), text=data.get("text", ""),
        where=data.get("where", "a checkpoint"),
        took_s=short_seconds(took_s), away_s=short_seconds(away_s),
        old=short_value(data.get("old")), new=short_value(data.get("new")),
        absent="; ".join(f"{name}: {why}" for name, why in gone),
        loss="" if loss is None else f" with a validation loss of {_number(loss):.4f}",
    )  # fmt: skip


def _reason(data: Mapping[str, Any]) -> str:
    return str(data.get("reason") or data.get("message") or "no reason is known")


def _number(value: Any) -> float:
    try:
        return float(value or 0.0)
    except (TypeError, ValueError):
        return 0.0  # the run's folder may be a stranger's


def _pairs(data: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in data.items() if key not in _IMPLIED)


def changes_in_words(pairs: Mapping[str, Any], most: int | None = None) -> str:
    """`optim.lr 0.001 → 0.0001, …`; beyond `most` their number alone."""
    items = [f"{path} {arrow(old, new)}" for path, (old, new) in pairs.items()]
    more = 0 if most is None else max(len(items) - most, 0)
    return ", ".join(items[:most]) + (f" and {more} more" if more else "")


def arrow(old: Any, new: Any) -> str:
    """A value before and after, each shortened to fit a line."""
    return f"{short_value(old)} → {short_value(new)}"


def short_value(value: Any) -> str:
    """A setting's value, shortened to fit a line; the files have the whole of it."""
    if value is None:
        return "none"
    text = f"{value:.10g}" if isinstance(value, float) else str(value) or "''"
    return text if len(text) <= 44 else f"{text[:43]}…"
