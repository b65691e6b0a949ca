"""The report's lists and tables as HTML; every text is escaped here."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from longhaul.board import page
from longhaul.board.chronicle import Entry
from longhaul.board.facts import RunFacts
from longhaul.board.incidents import AUTOMATIC, Incident
from longhaul.core.events import EventKind
from longhaul.core.machine import differences
from longhaul.core.records import Event
from longhaul.core.units import (
    Seconds,
    count,
    elapsed,
    figure,
    moment,
    price_words,
    sentence,
    short_count,
    short_seconds,
)
from longhaul.logbook.description import arrow, changes_in_words
from longhaul.logbook.summary import Branch

_INKS = 6
"""Colours that segments take in turn; the style sheet and the script have as many."""


def key_figures(facts: RunFacts) -> str:
    """What a passer-by reads."""
    of = f"of {facts.total_steps:,}" if facts.total_steps else ""
    lost = sum(branch.steps_lost for branch in facts.branches)
    wall = facts.seen - facts.began if facts.seen is not None and facts.began is not None else None
    bits = facts.bits_per_byte
    undefined = facts.goodput != facts.goodput
    cards = [
        ("steps", f"{facts.step:,}", of),
        ("training loss", figure(facts.loss), "nats"),
        ("validation loss", figure(facts.validation_loss),
         "nats" if bits is None else f"nats · {bits:.4f} bits per byte"),
        ("tokens", short_count(facts.tokens),
         f"and {short_count(facts.tokens_lost)} lost" if facts.tokens_lost else ""),
        ("time", "–" if wall is None else short_seconds(wall),
         "" if facts.began is None else f"since {moment(facts.began)}"),
        ("goodput", "–" if undefined else f"{facts.goodput:.1%}",
         f"{count(lost, 'step')} lost" if lost else "nothing lost"),
        ("incidents", f"{sum(i.tone != 'notice' for i in facts.incidents):,}",
         f"{count(facts.masked, 'update')} masked" if facts.masked else ""),
    ]  # fmt: skip
    return page.key_figures(cards)


def chronicle_list(entries: Sequence[Entry], began: Seconds | None) -> str:
    """One line an entry: when, at which step, what."""
    if not entries or began is None:
        return '<p class="empty">Nothing has happened yet.</p>'
    items = []
    for entry in entries:
        link = ""
        if entry.incident is not None:
            link = f' <a href="#incident-{entry.incident}">incident {entry.incident}</a>'
        items.append(
            f'<li class="{entry.tone}"><time title="{moment(entry.time)} UTC">'
            f"{elapsed(entry.time - began)}</time><span class='step'>step {entry.step:,}</span>"
            f"<span class='what'><span class='head'>{escape(entry.text)}</span> "
            f"{escape(entry.then)}{link}</span></li>"
        )
    return f"<ol class='entries'>{''.join(items)}</ol>"


def incident_table(facts: RunFacts) -> str:
    """Evidence, cause, action and price of each."""
    if not facts.incidents:
        return '<p class="empty">None.</p>'
    rows = "".join(_incident(number, i) for number, i in enumerate(facts.incidents, 1))
    titles = ("", "what", "evidence", "cause", "action", "price")
    return page.table("incidents", titles, rows)


def segment_table(facts: RunFacts) -> str:
    """The tree of segments, parent before child."""
    if not facts.branches:
        return '<p class="empty">No segment has been opened yet.</p>'
    rows = "".join(_segment(place, branch) for place, branch in enumerate(facts.branches))
    titles = ("segment", "steps", "learning rate", "why", "what became of it", "cost")
    return page.table("segments", titles, rows)


def attempt_table(facts: RunFacts) -> str:
    """Who trained: each attempt, where, from which step to which, and how it ended."""
    rows = []
    events = [record for record in facts.records if isinstance(record, Event)]
    ended = {e.attempt: e for e in events if e.kind == EventKind.ATTEMPT_ENDED}
    nodes = {e.attempt: e for e in events if e.kind == EventKind.ATTEMPT_BEGAN}
    for event in events:
        if event.kind != EventKind.ATTEMPT_STARTED:
            continue
        last = ended.get(event.attempt)
        where = nodes[event.attempt].data.get("nodes") if event.attempt in nodes else None
        named = ", ".join(map(str, where)) if where else str(event.data.get("host", "–"))
        end, tone = ("trains", "") if facts.state == "live" else ("fell silent", "alarm")
        if last is not None:
            why = [last.data.get(part) for part in ("reason", "cause", "remedy")]
            end, tone = " · ".join(str(word) for word in why if word), ""
        elif any(e.attempt > event.attempt for e in events):
            end, tone = "ended without a word", "alarm"
        reached = f"{last.step:,}" if last is not None else "–"
        begun = event.data.get("resumed_from")
        rows.append(
            f"<tr class='{tone}'><td><b>{event.attempt}</b></td><td>{moment(event.time)}</td>"
            f"<td>{escape(named)}</td><td>{'the beginning' if begun is None else f'{begun:,}'}</td>"
            f"<td>{reached}</td><td>{escape(end)}</td></tr>"
        )
    if not rows:
        return '<p class="empty">Nobody has trained it yet.</p>'
    titles = ("attempt", "began", "where", "from step", "to step", "how it ended")
    return page.table("attempts", titles, "".join(rows))


def time_bars(facts: RunFacts) -> str:
    """Every second in one bucket, largest first."""
    total = sum(facts.spent.values())
    if not total:
        return '<p class="empty">No second has been booked yet.</p>'
    rows = "".join(
        f"<tr><th>{escape(bucket.replace('_', ' '))}</th>"
        f"<td class='bar'><span class='{'kept' if bucket == 'training' else 'other'}' "
        f"style='width:{100 * seconds / total:.2f}%'></span></td>"
        f"<td>{short_seconds(seconds)}</td><td>{seconds / total:.1%}</td></tr>"
        for bucket, seconds in sorted(facts.spent.items(), key=lambda item: -item[1])
    )
    return (
        f"<p class='note'>Goodput is the share of training that was kept: "
        f"<strong>{facts.goodput:.1%}</strong> of {short_seconds(total)}, all attempts.</p>"
        f"<table class='bars'>{rows}</table>"
    )


def background(facts: RunFacts) -> str:
    """What would have to be the same to get the same numbers again."""
    if not facts.branches:
        return '<p class="empty">Not known before the first segment.</p>'
    changed = {
        path: f"{arrow(wanted, now)} ({why})" for path, (wanted, now, why) in facts.drift.items()
    }
    parts = [_details("other than in the recipe", changed, is_open=True)] if changed else []
    parts += [_details("settings in force", facts.settings, is_open=not changed)]
    parts += [
        _details(name, value if isinstance(value, Mapping) else {name: value})
        for name, value in facts.fingerprint.items()
    ]
    return "\n".join(parts)


def _incident(number: int, incident: Incident) -> str:
    also = f"<p class='quiet'>with {escape(', '.join(incident.also))}</p>" if incident.also else ""
    cause = f"<p>{escape(sentence(incident.cause))}</p>" if incident.cause else ""
    times = f"<p class='quiet'>seen {incident.times} times</p>" if incident.times > 1 else ""
    named = {name.replace("_", " "): value for name, value in incident.evidence.items()}
    named |= {f"replay, {name}": value for name, value in incident.rungs.items()}
    evidence = "".join(
        f"<li>{escape(name)} <b>{figure(value)}</b></li>" for name, value in named.items()
    )
    since = ""
    if incident.first_step != incident.step:
        since = f"<p class='quiet'>first sign at step {incident.first_step:,}</p>"
    actions = "".join(f"<li>{escape(action)}</li>" for action in incident.actions)
    by = ""
    if incident.decision is not None and incident.decision.who in AUTOMATIC:
        why = f"{incident.decision.who}: {incident.decision.reason}"
        by = f"<p class='quiet'>{escape(why)}</p>"
    done = f"<ul>{actions}</ul>{by}" if actions else "<p class='quiet'>reported only</p>"
    price = "".join(f"<li>{escape(phrase)}</li>" for phrase in price_words(incident.price))
    name = f"{incident.kind} {incident.subject}".strip()
    return (
        f'<tbody id="incident-{number}" class="{incident.tone}"><tr>'
        f"<td><b class='mark'>{number}</b></td>"
        f"<td><b>{escape(name)}</b><p>step {incident.step:,}, segment {escape(incident.segment)}"
        f"</p><p class='quiet'>{moment(incident.time)}</p>{times}</td>"
        f"<td><ul>{evidence}</ul>{since}</td>"
        f"<td>{escape(sentence(incident.sentence))}{cause}{also}</td><td>{done}</td>"
        f"<td><ul>{price or '–'}</ul></td></tr></tbody>"
    )


def _segment(place: int, branch: Branch) -> str:
    opening, stretch = branch.opening, branch.stretch
    parent = f"<p class='quiet'>after {opening.parent}</p>" if opening.parent else ""
    steps, rate = f"none after {opening.step:,}", "–"
    if stretch is not None:
        steps = f"{stretch.first_step:,}–{stretch.last_step:,}"
        rate = f"{stretch.learning_rate:.3g}"
    changes = "".join(
        f"<li>{escape(changes_in_words({path: pair}))}</li>"
        for path, pair in opening.difference.items()
    )
    cost = [short_seconds(branch.seconds)]
    if branch.steps_lost:
        cost += [f"{branch.steps_lost:,} steps lost", f"({short_seconds(branch.seconds_lost)})"]
    if stretch is not None and stretch.redone:
        cost.append(f"{stretch.redone:,} redone")
    return (
        f"<tr id='segment-{opening.number}'><td><i class='chip ink-{place % _INKS}'></i>"
        f"<b>{opening.number}</b>{parent}</td><td>{steps}</td><td>{rate}</td>"
        f"<td>{escape(opening.reason)}<ul>{changes}</ul></td><td>{escape(branch.ending)}</td>"
        f"<td>{'<br>'.join(cost)}</td></tr>"
    )


def _details(title: str, values: Mapping[str, Any], *, is_open: bool = False) -> str:
    leaves = {path: value for path, (_, value) in differences({}, values).items()}
    rows = "".join(
        f"<div><dt>{escape(path)}</dt><dd>{escape(_text(value))}</dd></div>"
        for path, value in leaves.items()
        if value is not None
    )
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>"
        f"<dl class='leaves'>{rows}</dl></details>"
    )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
