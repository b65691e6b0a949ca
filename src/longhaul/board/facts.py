"""Everything that the report tells, read from the logbook once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longhaul.board.curves import (
    Curve,
    ModelGauges,
    masked_steps,
    means,
    progress,
    read_model_gauges,
    settle,
    thinned,
    throughput,
    tokens_trained,
)
from longhaul.board.incidents import Incident, incidents
from longhaul.core.clocks import Clock, goodput
from longhaul.core.events import EventKind
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.strict import read_object
from longhaul.core.units import Nats, Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import live_holder
from longhaul.logbook.ledger import effective_settings, fold_all
from longhaul.logbook.queries import connect
from longhaul.logbook.reading import read_decisions, read_journal, read_last
from longhaul.logbook.segments import by_opening
from longhaul.logbook.summary import (
    Branch,
    State,
    last_validation_loss,
    read_branches,
    run_state,
    time_by_bucket,
)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One evaluation."""

    step: int
    segment: str
    loss: Nats
    kept: bool


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as its logbook tells it."""

    name: str
    state: State
    began: Seconds | None
    """Unix time at which its first process started; None before any record."""
    seen: Seconds | None
    """Unix time of the last record."""
    written: Seconds
    """Unix time of reading."""
    step: int
    """Updates that its present weights hold."""
    total_steps: int | None
    loss: Nats | None
    validation_loss: Nats | None
    bits_per_byte: float | None
    tokens: int
    tokens_lost: int
    masked: int
    spent: Mapping[str, Seconds]
    """Bucket → seconds."""
    goodput: float
    settings: Mapping[str, Any]
    """In force now; empty before the first segment."""
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
    damaged: int
    """Lines of the journal that cannot be read."""


def read_facts(folder: RunFolder, clock: Clock) -> RunFacts:
    """Read a run; live, dead and empty ones alike."""
    reading = read_journal(folder, steps=False)
    records = tuple(reading)
    damaged = reading.damaged
    live = live_holder(folder, clock) is not None
    last = read_last(folder, 1, events=False)
    step = last[0] if last and isinstance(last[0], StepRecord) else None
    with connect(folder) as connection:
        grown = read_branches(folder, connection, records, live=live)
        settle(connection, grown)
        spent = time_by_bucket(connection)
        curves = {
            name: thinned(connection, name)
            for name in ("loss", "gradient_norm", "learning_rate", "loss_scale")
        }
        curves |= {f"mean {name}": means(connection, name) for name in ("loss", "gradient_norm")}
        curves |= {"throughput": throughput(connection), "progress": progress(connection)}
        tokens, tokens_lost = tokens_trained(connection)
        masked = masked_steps(connection)
        model_gauges = read_model_gauges(connection)
    order = [str(opening.number) for opening in by_opening([b.opening for b in grown])]
    ordered = tuple(sorted(grown, key=lambda branch: order.index(branch.number)))
    newest = ordered[-1].opening if ordered else None
    starts = [e for e in records if isinstance(e, Event) and e.kind == EventKind.ATTEMPT_STARTED]
    reached = step.step if step else 0
    decisions, _ = read_decisions(folder)
    overrides = fold_all(decisions).overrides_at(reached)
    times = [record.time for record in [*records[-1:], *last]]
    return RunFacts(
        name=folder.name,
        state=run_state(records, live=live),
        began=_began(folder, records, step),
        seen=max(times, default=None),
        written=clock.wall(),
        step=reached,
        total_steps=starts[-1].data.get("total_steps") if starts else None,
        loss=step.loss if step else None,
        validation_loss=last_validation_loss(records),
        bits_per_byte=_last_bits(records),
        tokens=tokens,
        tokens_lost=tokens_lost,
        masked=masked,
        spent=spent,
        goodput=goodput(spent),
        settings=effective_settings(newest.settings, overrides) if newest else {},
        fingerprint=newest.fingerprint if newest else {},
        branches=ordered,
        records=records,
        incidents=incidents(records),
        validations=_validations(records, {b.number: b.kept_until for b in grown}),
        curves=curves,
        model_gauges=model_gauges,
        damaged=damaged,
    )


def _began(folder: RunFolder, records: Sequence[Record], step: StepRecord | None) -> Seconds | None:
    """A record's seconds end at its time; the first record carries the start of the process."""
    first = next((e for e in records if isinstance(e, Event)), None)
    if first is not None:
        return first.time - sum(first.seconds.values())
    if step is None:
        return None
    try:
        return float(read_object(folder.identity)["created"])
    except (OSError, ValueError, KeyError, TypeError):
        return step.time


def _validations(records: Sequence[Record], kept: Mapping[str, int]) -> tuple[Validation, ...]:
    found = []
    for event in records:
        if not isinstance(event, Event) or event.kind not in (
            EventKind.EVALUATION,
            EventKind.FINISHED,
        ):
            continue
        if event.data.get("loss") is not None:
            in_line = event.step <= kept.get(event.segment, event.step)
            found.append(
                Validation(
                    step=event.step, segment=event.segment,
                    loss=float(event.data["loss"]), kept=in_line,
                )
            )  # fmt: skip
    return tuple(found)


def _last_bits(records: Sequence[Record]) -> float | None:
    for event in reversed(records):
        if isinstance(event, Event) and event.kind in (EventKind.EVALUATION, EventKind.FINISHED):
            bits = event.data.get("bits_per_byte")
            if event.data.get("loss") is not None:
                return None if bits is None else float(bits)
    return None
