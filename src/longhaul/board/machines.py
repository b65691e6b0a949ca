"""What befell machines, stores and replicas, each in a sentence for the chronicle.

Enters: an event that a supervisor, the keeper of checkpoints or a remote tier wrote down.
Leaves: its tone and its sentence; nothing for events that need none.
Never knows: who reads it, or what else happened.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from longhaul.core.records import Event
from longhaul.core.units import short_seconds

Tone = Literal["plain", "good", "notice", "warning", "alarm"]
Telling = tuple[Tone, str]


def told_of_machines(event: Event) -> Telling | None:
    """Tone and sentence of an event; None where nothing is to be told."""
    teller = _TELLERS.get(event.kind)
    return None if teller is None else teller(event.data)


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
        f"Nothing of the run was left here: its book was brought back from {data.get('tier')} as "
        f"attempt {data.get('of_attempt')} had left it"
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
    "attempt-began": _world,
    "machine-verdict": _verdict,
    "node-probed": _probed,
    "node-refused": _of_node("warning", "was refused"),
    "node-ordered": _ordered,
    "node-awaited": _because("warning", "There was no node to go on with, and it waited"),
    "node-drained": _because("notice", "All were started again at a checkpoint"),
    "brought-back": _brought_back,
    "fetched": _fetched,
    "store-away": _because("warning", "A store did not answer"),
    "store-back": lambda data: ("notice", f"{data.get('tier')} answered again"),
    "store-taken": _because("alarm", "A store was taken over"),
    "upload-dropped": _because("warning", "A checkpoint was not sent"),
    "paused": _because("alarm", "It paused"),
    "resumed": _because("notice", "It went on"),
    "replica-lost": _replica_lost,
    "replica-back": _replica_back,
    "healed": lambda data: (
        "notice",
        f"The pilot was back, with the state of replica {data.get('peer')}",
    ),
    "preemption-missed": _because("alarm", "A notice was missed"),
}
