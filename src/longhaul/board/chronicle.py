"""The course of a run in sentences, for somebody who was asleep."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longhaul.board.facts import RunFacts
from longhaul.board.incidents import AUTOMATIC, Incident
from longhaul.core.events import EventKind
from longhaul.core.machine import differences
from longhaul.core.records import Decision, Event, Record
from longhaul.core.units import (
    Seconds,
    count,
    figure,
    loss_in_words,
    moment,
    price_words,
    sentence,
    short_seconds,
)
from longhaul.logbook.description import Tone, changes_in_words, decision_in_words, event_in_words
from longhaul.logbook.segments import SegmentOpening

MOST_ENTRIES = 300
"""Of a chronicle; of a longer one the middle is left out, and it says so."""
_MOST_DIFFERENCES = 4


@dataclass(frozen=True)
class Entry:
    """One thing that happened."""

    time: Seconds
    step: int
    tone: Tone
    text: str
    then: str = ""
    """What was done about it, and at what price."""
    incident: int | None = None
    """Number of the incident it tells of, from 1."""


def in_short(facts: RunFacts) -> str:
    """The whole run in three or four sentences."""
    if not facts.branches or facts.began is None or facts.seen is None:
        return "Nothing has been trained yet."
    wall = short_seconds(facts.seen - facts.began)
    of = f" of {facts.total_steps:,}" if facts.total_steps else ""
    how = {
        "finished": "and finished", "live": "and is training now",
        "stopped": "and was stopped", "dead": "and then fell silent", "new": "so far",
    }[facts.state]  # fmt: skip
    said = [f"The run made {facts.step:,}{of} steps in {wall} {how}."]
    if loss := _loss_sentence(facts):
        said.append(loss)
    rollbacks = [branch for branch in facts.branches if branch.outcome == "rolled back"]
    restarts = len({branch.opening.attempt for branch in facts.branches}) - 1
    alarms = [incident for incident in facts.incidents if incident.tone != "notice"]
    if not alarms and not rollbacks and not restarts:
        said.append("Nothing went wrong.")
    else:
        met = [
            f"met {count(len(alarms), 'incident')}" if alarms else "",
            f"was rolled back {_times(len(rollbacks))}" if rollbacks else "",
            f"was restarted {_times(restarts)}" if restarts else "",
        ]
        first, *others = [words for words in met if words]
        trouble = f"{', '.join([first, *others[:-1]])} and {others[-1]}" if others else first
        decided = [i.decision.who for i in facts.incidents if i.decision is not None]
        alone = ", without a person" if decided and set(decided) <= set(AUTOMATIC) else ""
        said.append(f"It {trouble}{alone}.")
    lost = sum(branch.steps_lost for branch in facts.branches)
    if not math.isnan(facts.goodput):
        price = f"; {count(lost, 'step')} had to be made again" if lost else ""
        said.append(f"{facts.goodput:.1%} of its time went into training that was kept{price}.")
    return " ".join(said)


def chronicle(facts: RunFacts) -> list[Entry]:
    """What happened, in order of time."""
    entries = [
        *_openings(facts),
        *_incidents(facts.incidents),
        *_milestones(facts),
        *_records(facts.records),
    ]
    entries.sort(key=lambda entry: entry.time)
    if len(entries) <= MOST_ENTRIES:
        return entries
    half = MOST_ENTRIES // 2
    left_out = len(entries) - 2 * half
    at = entries[half]
    note = Entry(at.time, at.step, "plain", f"… {left_out:,} entries are left out here …")
    return [*entries[:half], note, *entries[-half:]]


def _openings(facts: RunFacts) -> Iterator[Entry]:
    known = {branch.opening.number: branch.opening for branch in facts.branches}
    previous: SegmentOpening | None = None
    for branch in facts.branches:
        opening = branch.opening
        parent = known.get(opening.parent) if opening.parent else previous
        if parent is None:
            host = opening.nodes[0] if opening.nodes else "this machine"
            model = _model(opening.settings)
            given = opening.weights.get("folder")
            with_weights = f", with the weights in {given}" if given else ""
            text = f"The run began on {host}{model}{with_weights} ({moment(opening.opened)} UTC)."
            yield Entry(opening.opened, opening.step, "good", text)
        elif opening.attempt != parent.attempt:
            where = f"step {opening.step:,}" if opening.step else "the beginning"
            text = f"Attempt {opening.attempt} went on from {where} as segment {opening.number}."
            yield Entry(opening.opened, opening.step, "plain", text)
            software = differences(parent.fingerprint, opening.fingerprint)
            differ: tuple[tuple[Tone, str, Mapping[str, Any]], ...] = (
                ("warning", "Machine or software", software),
                ("notice", "Settings", opening.difference),
            )
            for tone, what, changed in differ:
                if changed:
                    text = f"{what} had changed: {changes_in_words(changed, _MOST_DIFFERENCES)}."
                    yield Entry(opening.opened, opening.step, tone, text)
        previous = opening


def _incidents(found: Sequence[Incident]) -> Iterator[Entry]:
    for number, incident in enumerate(found, 1):
        text = sentence(incident.sentence)
        if incident.times > 1:
            text += f" It was seen {_times(incident.times)}."
        if incident.cause:
            text += f" Replays of the steps name the cause. {sentence(incident.cause)}"
        then = ""
        if incident.actions:
            decided = incident.decision
            by = f"{decided.who}: " if decided is not None and decided.who in AUTOMATIC else ""
            then = sentence(by + ", ".join(incident.actions))
        if price := price_words(incident.price):
            then += f" Price: {', '.join(price)}."
        yield Entry(incident.time, incident.step, incident.tone, text, then, number)


def _records(records: Sequence[Record]) -> Iterator[Entry]:
    for record in records:
        tone: Tone = "notice"
        text = ""
        if isinstance(record, Decision):
            text = decision_in_words(record)
        elif isinstance(record, Event) and (toned := event_in_words(record)) is not None:
            tone, text = toned
        if text:
            yield Entry(record.time, record.step, tone, sentence(text))


def _milestones(facts: RunFacts) -> Iterator[Entry]:
    good = [v for v in facts.validations if v.kept and math.isfinite(v.loss)]
    events = [e for e in facts.records if isinstance(e, Event)]
    saved = [
        e for e in events if e.kind == EventKind.CHECKPOINT and e.data.get("health") == "verified"
    ]
    if len(saved) > 1:
        text = f"{len(saved):,} checkpoints were saved and read back."
        yield Entry(saved[-1].time, saved[-1].step, "plain", text)
    if len(good) > 2:
        best = min(good, key=lambda v: v.loss)
        at = [e for e in events if e.kind == EventKind.EVALUATION and e.step == best.step]
        if at:
            text = f"Best validation loss of the run: {best.loss:.4f}."
            yield Entry(at[-1].time, best.step, "good", text)


def _loss_sentence(facts: RunFacts) -> str:
    if facts.validation_loss is None:
        return f"Its last training loss was {figure(facts.loss)}." if facts.loss is not None else ""
    first = next((v.loss for v in facts.validations if v.kept), None)
    now = loss_in_words(facts.validation_loss, facts.bits_per_byte)
    if first is None or len(facts.validations) < 2:
        return f"Its validation loss is {now}."
    way = "fell" if facts.validation_loss < first else "went"
    return f"Validation loss {way} from {figure(first)} to {now}."


def _model(settings: Any) -> str:
    model = settings.get("model", {})
    if "layers" not in model or "width" not in model:
        return ""
    return f": {count(model['layers'], 'layer')} of width {model['width']:,}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")
