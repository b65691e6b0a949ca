"""The texts that a run wrote as it learned, beside the validation loss of that step."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

from longhaul.board.facts import RunFacts
from longhaul.core.events import EventKind
from longhaul.core.records import Event
from longhaul.core.units import figure

_MOST = 12
"""Shown of them, the first and the last among them."""
_MOST_CHARACTERS = 4000


def sample_list(facts: RunFacts) -> str:
    """The newest first, some left out in between; empty if there are none."""
    samples = [event for event in _samples(facts) if event.data.get("text")]
    losses = {(v.segment, v.step): v.loss for v in facts.validations}
    kept = {branch.number: branch.kept_until for branch in facts.branches}
    items = []
    for event in _spread(samples)[::-1]:
        loss = losses.get((event.segment, event.step))
        lost = event.step > kept.get(event.segment, event.step)
        where = [
            f"step {event.step:,}",
            f"validation loss {figure(loss)}" if loss is not None else "",
            "rolled back" if lost else "",
        ]
        text = str(event.data["text"])
        cut = " …" if len(text) > _MOST_CHARACTERS else ""
        items.append(
            f"<li class='{'lost' if lost else 'kept'}'><p>{' · '.join(filter(None, where))}</p>"
            f"<pre>{escape(text[:_MOST_CHARACTERS])}{cut}</pre></li>"
        )
    if not items:
        return ""
    left_out = len(samples) - len(items)
    note = f"<p class='note'>{left_out:,} in between are left out.</p>" if left_out else ""
    return f"<ol class='samples'>{''.join(items)}</ol>{note}"


def _samples(facts: RunFacts) -> Iterator[Event]:
    seen = set()
    for record in facts.records:
        if not isinstance(record, Event):
            continue
        if record.kind == EventKind.SAMPLE:
            seen.add((record.segment, record.step))
            yield record
        elif record.kind == EventKind.FINISHED and (record.segment, record.step) not in seen:
            text = record.data.get("sample")  # all that a run before `sample` events has
            if text:
                yield replace(record, data={"text": text})


def _spread(samples: Sequence[Event]) -> Sequence[Event]:
    last = len(samples) - 1
    if last < _MOST:
        return samples
    return [samples[round(at * last / (_MOST - 1))] for at in range(_MOST)]
