"""Which gauges will cross a line of danger, and when: what the run has found of growth, as far as
its present weights and newest readings still bear it out.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import duckdb
from pydantic import ValidationError

from longhaul.config.diagnose import GrowthLimits
from longhaul.config.load import with_values
from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Finding, Record
from longhaul.diagnose.growth import danger_lines
from longhaul.diagnose.robust import trend
from longhaul.logbook.ledger import fold_all
from longhaul.logbook.segments import SegmentOpening, by_opening
from longhaul.logbook.summary import kept_until

_MOST_READINGS = 64
"""Looked back over, as by the run's own judgement."""
_STEADY = 0.5
"""Of the pace that was found: what has slowed down further is no danger any more."""
_MOVES_GAUGES = ("optim.", "model.", "batch.", "data.", "precision.")
"""Settings after whose change a gauge has a trend of its own."""
_OF_LAYER = re.compile(r"(.+)\[(\d{1,6})\]")
_NEWEST = (
    "SELECT gauged.rowid FROM gauged JOIN kept USING (segment) WHERE step <= kept "
    "ORDER BY place DESC, step DESC LIMIT ?"
)


@dataclass(frozen=True)
class Danger:
    """One layer, or one figure of the model, that grows toward its line or stands beyond it."""

    gauge: str
    """As the page's menus name it."""
    layer: int | None
    """None of a figure of the whole model."""
    role: str
    """Of weights, where such a figure has one."""
    line: float | None
    """From where on it is dangerous; None: no such line is known."""
    step: int | None
    """At which it will be crossed; None if it was, or there is no line."""
    doubling_steps: float | None
    """At its present pace; None if it stands still."""
    value: float
    """Its newest reading, without the sign."""
    at: int
    """Step of that reading."""

    @property
    def crossed(self) -> bool:
        """It stands beyond its line."""
        return self.line is not None and self.step is None


class _Reading(NamedTuple):
    step: int
    time: float
    values: tuple[float, ...]


def line_of(limits: GrowthLimits, fp16: bool, gauge: str) -> float | None:
    """From where on a gauge is dangerous, named as in a record; None if nobody knows."""
    lines = danger_lines(limits, fp16)
    line = lines.get(gauge) or lines.get(gauge.partition(".")[0])
    known = () if line is None else (line.alarm, line.warning)
    return next((value for value in known if math.isfinite(value)), None)


def limits_in_force(
    openings: Sequence[SegmentOpening], decisions: Iterable[Decision], step: int
) -> GrowthLimits:
    """Those of the segment opened last, as people have changed them since; the defaults where a
    logbook tells none that this version knows.
    """
    newest = by_opening(openings)[-1:]
    settings = newest[0].settings if newest else {}
    changed = fold_all(d for d in decisions if d.kind in ("set", "unset")).overrides_at(step)
    own = {path: value for path, value in changed.items() if path.startswith("diagnose.growth.")}
    try:
        found = with_values(settings, own)["diagnose"]["growth"]
        return GrowthLimits.model_validate(found)
    except (KeyError, TypeError, ValidationError):
        return GrowthLimits()


def dangers(
    connection: duckdb.DuckDBPyConnection,
    records: Sequence[Record],
    openings: Sequence[SegmentOpening],
    limits: GrowthLimits,
) -> tuple[Danger, ...]:
    """What is forecast and still holds, the most pressing first.

    A finding of growth stands while the present weights hold its step, and while its gauge grows at
    half of the pace that was found at least, by the readings since the last decision that moves
    gauges. The step of crossing is foretold anew from those. `connection` has the tables `gauged`
    and `kept`; `records` are events, findings and decisions of the run, in order.
    """
    kept = kept_until(openings)
    found = {
        record.subject: record
        for record in records
        if isinstance(record, Finding)
        and record.kind == "growth"
        and record.step <= kept.get(record.segment, -1)
        and {"doubling_steps", "danger_line"} & record.evidence.keys()
    }
    if not found:  # as nearly always: no reading is looked at
        return ()
    moved = [d for d in records if isinstance(d, Decision) and _moves_gauges(d)]
    totals = [e.data.get("total_steps") for e in records
              if isinstance(e, Event) and e.kind == EventKind.ATTEMPT_STARTED]  # fmt: skip
    last_step = (totals[-1] if totals else None) or math.inf
    readings = _read_newest(connection, {_place_of(subject)[0] for subject in found})
    standing = []
    for subject, finding in found.items():
        key, layer = _place_of(subject)
        since = _since_decisions(readings.get(key, ()), moved)
        danger = _still(finding, key, layer, since, limits.readings)
        if danger is not None and (danger.step or 0) <= last_step:
            standing.append(danger)
    return tuple(sorted(standing, key=_pressing))


def _pressing(danger: Danger) -> tuple[bool, float]:
    if danger.line is None:
        return True, danger.doubling_steps or math.inf
    return False, -math.inf if danger.step is None else danger.step


def _place_of(subject: str) -> tuple[str, int | None]:
    match = _OF_LAYER.fullmatch(subject)
    return (match[1], int(match[2])) if match else (subject, None)


def _read_newest(
    connection: duckdb.DuckDBPyConnection, keys: Iterable[str]
) -> dict[str, list[_Reading]]:
    """The newest readings of these gauges on the line of the present weights, oldest first."""
    rowids = [row[0] for row in connection.execute(_NEWEST, [_MOST_READINGS]).fetchall()]
    parts = (
        f"SELECT step, time, e.key AS key, {values} AS found FROM (SELECT step, time, "
        f"unnest(map_entries({column})) AS e FROM gauged WHERE list_contains($rows, rowid))"
        for column, values in (("gauges", "e.value"), ("totals", "[e.value]"))
    )
    rows = connection.execute(
        f"SELECT key, step, time, found FROM ({' UNION ALL '.join(parts)}) "
        "WHERE list_contains($keys, key) ORDER BY key, step, time",
        {"rows": rowids, "keys": sorted(keys)},
    ).fetchall()
    return {
        key: [_Reading(step, time, tuple(map(float, values))) for _, step, time, values in own]
        for key, own in groupby(rows, key=lambda row: str(row[0]))
    }


def _moves_gauges(decision: Decision) -> bool:
    path = str(decision.data.get("path", ""))
    return decision.kind == "recover" or (
        decision.kind in ("set", "unset") and path.startswith(_MOVES_GAUGES)
    )


def _since_decisions(readings: Sequence[_Reading], moved: Sequence[Decision]) -> list[_Reading]:
    """The readings that tell of the settings in force now, warm-ups after a reset left out."""
    if not readings:
        return []
    after, from_step = -math.inf, -math.inf
    for decision in moved:
        if decision.from_step > readings[-1].step:
            continue  # not in force yet
        begin = decision.from_step
        if decision.kind == "recover":
            back = decision.data.get("rollback") or {}
            begin = int(back.get("to", decision.step)) + int(decision.data.get("rewarm_steps") or 0)
        after, from_step = max(after, decision.time), max(from_step, begin)
    return [reading for reading in readings if reading.time > after and reading.step > from_step]


def _still(
    finding: Finding, key: str, layer: int | None, readings: Sequence[_Reading], least: int
) -> Danger | None:
    """What is left of a finding by these readings; nothing if they say otherwise."""
    place = layer or 0
    course = [(r.step, abs(r.values[place])) for r in readings if place < len(r.values)]
    if not course or math.isnan(course[-1][1]):
        return None
    at, value = course[-1]
    gauge, _, role = (key, "", "") if layer is not None else key.partition(".")
    line = finding.evidence.get("danger_line")
    if line is not None and not 0 < line < math.inf:
        return None
    slope = _slope(finding, course, least)
    doubling = None if slope is None else math.log(2) / slope
    if line is not None and value >= line:
        return Danger(gauge, layer, role, line, None, doubling, value, at)
    if slope is None or (line is not None and value <= 0):
        return None
    step = None if line is None else round(at + math.log(line / value) / slope)
    return Danger(gauge, layer, role, line, step, doubling, value, at)


def _slope(finding: Finding, course: Sequence[tuple[int, float]], least: int) -> float | None:
    """Of the logarithm a step, over as long a stretch as the finding's and over its later half,
    the lesser; None where the growth that was found has come to an end.
    """
    doubling = finding.evidence.get("doubling_steps", math.nan)
    sound = [(step, math.log(value)) for step, value in course if 0 < value < math.inf]
    if not 0 < doubling < math.inf or len(sound) < least:
        return None
    begin = sound[-1][0] - (finding.step - finding.first_step)
    count = max(least, sum(step >= begin for step, _ in sound))
    times, logs = zip(*sound[-count:], strict=True)
    half = count // 2
    slope = min(trend(times, logs).slope, trend(times[half:], logs[half:]).slope)
    return slope if slope >= _STEADY * math.log(2) / doubling else None


def mark(found: Sequence[Danger]) -> str:
    """What a menu says of a gauge with these dangers; empty without."""
    if not found:
        return ""
    first = found[0]
    if first.line is None:
        return "grows too fast"
    line = f"{first.line:,g}"
    return f"beyond {line}" if first.step is None else f"{line} at step {first.step:,}"


def in_words(found: Sequence[Danger], line: float | None) -> str:
    """One sentence of a gauge whose line of danger, if any, is this."""
    if not found:
        return "No danger is forecast" + ("." if line is None else f"; it begins at {line:,g}.")
    first, *others = found
    phrases = [_phrase(first), *(_phrase(danger, first) for danger in others[:_MOST_NAMED])]
    if more := len(others) - _MOST_NAMED:
        phrases += [f"{more} more after these"] * (more > 0)
    text = "; ".join(phrases)
    return f"{text[0].upper()}{text[1:]}."


_MOST_NAMED = 3
"""Layers beside the first; the map marks all."""


def _phrase(danger: Danger, before: Danger | None = None) -> str:
    who = (
        f"layer {danger.layer}"
        if danger.layer is not None
        else danger.role or danger.gauge.replace("_", " ")
    )
    pace = (
        ""
        if danger.doubling_steps is None
        else f", doubling every {danger.doubling_steps:,.0f} steps"
    )
    if danger.line is None:
        return f"{who} grows faster than healthy ones do{pace}; no line of danger is known"
    if danger.step is None:
        return f"{who} stands at {danger.value:,.4g}, beyond {danger.line:,g}{pace}"
    if before is not None and before.line == danger.line and before.step is not None:
        return f"{who} at about step {danger.step:,}"
    return f"{who} will cross {danger.line:,g} at about step {danger.step:,}{pace}"


def as_data(found: Sequence[Danger]) -> Iterator[Mapping[str, Any]]:
    """For the page's script, with numbers that JSON knows."""
    for danger in found:
        yield {
            key: value if not isinstance(value, float) or math.isfinite(value) else None
            for key, value in vars(danger).items()
        }
