"""What the board's page is told of runs, as JSON. What is HTML in it was escaped here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from longhaul.board.chronicle import in_short
from longhaul.board.curves import short, tokens_seen
from longhaul.board.facts import facts_of
from longhaul.board.figures import Figure, Json, loss_figure, progress_figure, step_figures
from longhaul.board.incidents import incidents
from longhaul.board.live_run import LiveRun
from longhaul.board.outlook import outlook, reach
from longhaul.board.page import figure_section
from longhaul.board.preview import preview
from longhaul.board.report import gauge_section, sections_in_words
from longhaul.config.train import TargetSection
from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError
from longhaul.core.events import EventKind
from longhaul.core.records import Event, Record
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.segments import read_segments
from longhaul.logbook.summary import summary_of
from longhaul.monitor.throughput import mfu

_SPARK_POINTS = 120
_PACE_STEPS = 400
"""Of the last ones, which tell how fast a run goes."""


def glance(run: LiveRun, clock: Clock) -> Json:
    """One run in a list: state, loss, pace, when it will be done, what troubles it."""
    with run.lock:
        run.count_events_in()
        summary = summary_of(run.folder, clock, run.records, run.connection)
        spark = run.connection.execute(
            "SELECT max(step), avg(loss) FROM steps WHERE isfinite(loss) GROUP BY step // "
            "(1 + (SELECT coalesce(max(step), 0) FROM steps) // ?) ORDER BY 1",
            [_SPARK_POINTS],
        ).fetchall()
        rows = run.connection.execute(
            "SELECT time, step, tokens, timed FROM steps WHERE attempt = "
            "(SELECT max(attempt) FROM steps) ORDER BY rowid DESC LIMIT ?",
            [_PACE_STEPS],
        ).fetchall()[::-1]
    times, steps = [row[0] for row in rows], [row[1] for row in rows]
    total = summary.total_steps
    ahead = outlook(times, steps, total) if total and summary.state == "live" else None
    timed = sum(row[3] for row in rows)
    rate = sum(row[2] for row in rows) / timed if timed else None
    hardware = _hardware(run.records)
    serious = [i for i in incidents(run.records) if i.tone != "notice"]
    last = serious[-1] if serious else None
    return {
        "name": summary.name, "state": summary.state, "step": summary.step, "total": total,
        "loss": _number(summary.loss), "validation_loss": _number(summary.validation_loss),
        "goodput": _number(summary.goodput), "segments": summary.segments, "seen": summary.seen,
        "now": clock.wall(), "tokens_per_s": rate,
        "mfu": _share_of_peak(rate, hardware), "devices": hardware.get("count"),
        "ahead": vars(ahead) if ahead else None, "incidents": len(serious),
        "trouble": None if last is None else {
            "kind": last.kind, "tone": last.tone, "step": last.step, "time": last.time,
            "done": list(last.actions),
        },
        "spark": [[step, short(loss)] for step, loss in spark],
    }  # fmt: skip


def whole(run: LiveRun, clock: Clock) -> Json:
    """A run's page, but for its gauges: sections of text, figures, and where to go on from."""
    with run.lock:
        cursor, version = run.steps_read, run.version
        facts = facts_of(run, clock, gauges=False)
        steps, tokens = tokens_seen(run.connection)
        aim = _target(run, facts.settings.get("target") or {})
    figures = [loss_figure(facts), progress_figure(facts), *step_figures(facts)]
    return {
        "name": facts.name, "short": in_short(facts),
        "words": sections_in_words(facts), "figures": [_figure(figure) for figure in figures],
        "cursor": cursor, "version": version, "began": facts.began,
        "tokens": {"step": steps, "tokens": tokens}, "target": aim,
        "flops_per_token": _hardware(run.records).get("flops_per_token"),
    }  # fmt: skip


def first_look(folder: RunFolder) -> Json | None:
    """The loss of a long run, to be looked at until `whole` is there."""
    figure = preview(folder)
    return _figure(figure) if figure else None


def gauges(run: LiveRun) -> Json:
    """A run's gauges and the section that shows them."""
    with run.lock:
        found = run.model_gauges(read_segments(run.folder))
    return {"section": gauge_section(found), "gauges": found.as_json()}


def since(run: LiveRun, cursor: int) -> Json:
    """The steps that came since, and whether the page must be asked for anew."""
    fresh = run.steps_since(cursor)
    figures: Mapping[str, Any] = vars(fresh)
    return {
        key: [_number(v) if isinstance(v, float) else v for v in value]
        if isinstance(value, tuple) else value
        for key, value in figures.items()
    } | {"version": run.version}  # fmt: skip


def _figure(figure: Figure) -> Json:
    return vars(figure) | {"section": figure_section(figure)}


def _target(run: LiveRun, settings: Mapping[str, Any]) -> Json | None:
    """What the run is to reach, whether it has, or at which steps it will."""
    aim = TargetSection.model_validate(dict(settings))
    if aim.loss is None and aim.deadline is None:
        return None
    found: Json = {"loss": aim.loss, "deadline": aim.deadline_time, "reach": None, "reached": None}
    if aim.loss is not None:
        rows = run.connection.execute(
            "SELECT max(step), avg(loss) FROM steps JOIN kept USING (segment) WHERE step <= kept "
            "AND isfinite(loss) GROUP BY step // (1 + (SELECT max(step) FROM steps) // 200) "
            "ORDER BY 1"
        ).fetchall()
        found["reached"] = next((step for step, loss in rows if loss <= aim.loss), None)
        late = rows[len(rows) // 5 :]  # the first steps follow no such law
        ahead = reach([row[0] for row in late], [row[1] for row in late], aim.loss)
        found["reach"] = vars(ahead) if ahead and found["reached"] is None else None
    return found


def _hardware(records: Sequence[Record]) -> Mapping[str, Any]:
    """What the last attempt said of its devices; an older one said nothing."""
    for record in reversed(records):
        if isinstance(record, Event) and record.kind == EventKind.ATTEMPT_STARTED:
            return record.data.get("hardware") or {}
    return {}


def _share_of_peak(tokens_per_s: float | None, hardware: Mapping[str, Any]) -> float | None:
    if tokens_per_s is None or not hardware.get("peak"):
        return None
    try:
        return mfu(tokens_per_s, hardware["flops_per_token"], hardware["peak"])
    except LonghaulError:
        return None  # beyond the peak: that or the clock is wrong


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
