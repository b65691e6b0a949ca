"""Everything that the report tells, read from the logbook once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longhaul.board.curves import (
    Curve,
    ModelGauges,
    means,
    note_kept,
    pace,
    step_totals,
    thinned,
)
from longhaul.board.incidents import Incident, incidents
from longhaul.board.live_run import LiveRun
from longhaul.board.nodes import NodesAndRanks, read_nodes
from longhaul.config.load import with_values
from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError
from longhaul.core.records import Decision, Event, Record
from longhaul.core.units import Nats, Seconds
from longhaul.logbook.folder import RunFolder, created_of
from longhaul.logbook.ledger import fold_all
from longhaul.logbook.run_spec import read_run_spec
from longhaul.logbook.segments import drift_from_recipe
from longhaul.logbook.summary import Branch, RunSummary, evaluations, read_branches, summary_of


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One evaluation."""

    step: int
    segment: str
    loss: Nats
    kept: bool


@dataclass(frozen=True, kw_only=True)
class RunFacts(RunSummary):
    """A run as its logbook tells it."""

    began: Seconds | None
    """Unix time at which its first process started; None before any record."""
    written: Seconds
    """Unix time of reading."""
    tokens: int
    tokens_lost: int
    masked: int
    settings: Mapping[str, Any]
    """In force now; empty before the first segment."""
    drift: Mapping[str, tuple[Any, Any, str]]
    """Path → what the recipe has, what is in force, and why; of the settings that differ."""
    fingerprint: Mapping[str, Any]
    branches: tuple[Branch, ...]
    """In the order in which they were opened."""
    records: tuple[Record, ...]
    """Events, findings and decisions in order."""
    incidents: tuple[Incident, ...]
    validations: tuple[Validation, ...]
    curves: Mapping[str, Sequence[Curve]]
    """loss, gradient_norm, learning_rate, loss_scale, throughput, progress; `mean loss` and
    `mean gradient_norm` where a run is too long to show every step."""
    model_gauges: ModelGauges
    nodes: NodesAndRanks | None
    """None where the run is one process."""
    damaged: int
    """Lines of the journal that cannot be read."""


def read_facts(folder: RunFolder, clock: Clock) -> RunFacts:
    """Read a run; live, dead and empty ones alike."""
    with LiveRun(folder) as run:
        return facts_of(run, clock, gauges=True)


def facts_of(run: LiveRun, clock: Clock, *, gauges: bool) -> RunFacts:
    """What a run that is followed tells by now, with its gauges or without."""
    with run.lock:
        return _facts_of(run, clock, gauges=gauges)


def _facts_of(run: LiveRun, clock: Clock, *, gauges: bool) -> RunFacts:
    folder, connection, records = run.folder, run.connection, run.records
    run.count_events_in()
    summary = summary_of(folder, clock, records, connection)
    grown = read_branches(folder, connection, records, live=summary.state == "live")
    branches = tuple(sorted(grown, key=lambda b: (b.opening.attempt, b.opening.opened)))
    openings = [branch.opening for branch in branches]
    note_kept(connection, openings)
    curves = thinned(connection, ("loss", "gradient_norm", "learning_rate", "loss_scale"))
    averages = means(connection, ("loss", "gradient_norm"))
    curves |= {f"mean {name}": curve for name, curve in averages.items()} | pace(connection)
    tokens, tokens_lost, masked = step_totals(connection)
    model_gauges = run.model_gauges(openings) if gauges else ModelGauges()
    kept = {branch.number: branch.kept_until for branch in branches}
    newest = branches[-1].opening if branches else None
    decisions = [record for record in records if isinstance(record, Decision)]
    overrides = fold_all(decisions).overrides_at(summary.step)
    settings = with_values(newest.settings, overrides) if newest else {}
    now = clock.wall()
    return RunFacts(
        **vars(summary),
        began=_began(folder, records, summary.seen),
        written=now,
        tokens=tokens,
        tokens_lost=tokens_lost,
        masked=masked,
        settings=settings,
        drift=_drift(folder, branches, decisions, summary.step),
        fingerprint=newest.fingerprint if newest else {},
        branches=branches,
        records=records,
        incidents=incidents(records),
        validations=tuple(
            Validation(
                step=event.step,
                segment=event.segment,
                loss=float(event.data["loss"]),
                kept=event.step <= kept.get(event.segment, event.step),
            )
            for event in evaluations(records)
        ),
        curves=curves,
        model_gauges=model_gauges,
        nodes=read_nodes(records, settings, folder.path, now),
        damaged=run.damaged,
    )


def _drift(
    folder: RunFolder, branches: Sequence[Branch], decisions: Sequence[Decision], step: int
) -> Mapping[str, tuple[Any, Any, str]]:
    try:
        recipe = read_run_spec(folder).settings().model_dump(mode="json")
    except (LonghaulError, OSError):
        return {}  # a folder without its recipe has a report all the same
    openings = [branch.opening for branch in branches]
    return drift_from_recipe(recipe, openings, fold_all(decisions), step) if openings else {}


def _began(folder: RunFolder, records: Sequence[Record], seen: Seconds | None) -> Seconds | None:
    """A record's seconds end at its time; the first record carries the start of the process."""
    first = next((record for record in records if isinstance(record, Event)), None)
    if first is not None:
        return first.time - sum(first.seconds.values())
    created = created_of(folder)
    return seen if seen is None or created is None else created
