"""Signals of runs in one small file.

Enters: records of many runs. Leaves: one Parquet file, and from it the same records. Never knows:
what they mean.

Numbers are kept as float32 with 11 bits of fraction (a relative error of at most 2⁻¹²). They are
rounded before anything judges them, so a stored trace gives the findings that were published.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longhaul.core.records import Event, StepRecord, from_line, to_line

Trace = tuple[StepRecord | Event, ...]
_FRACTION_BITS_DROPPED = 12
_TABLES = ("seconds", "totals", "source_losses")
_SCALARS = ("loss", "gradient_norm", "learning_rate", "loss_scale")
_PLAIN = (
    "step", "draw", "next_draw", "masked", "loss_scale_at_floor", "sequences", "sequence_length",
    "mixture_stage", "warmup", "evaluation_due", "save_due",
)  # fmt: skip
"""Kept as they are; fields in neither list are the same in every run of the lab."""


def rounded(value: float) -> float:
    """The nearest float32 with 11 bits of fraction."""
    if not math.isfinite(value) or value == 0:
        return float(value)
    bits = np.float32(value).view(np.uint32)
    half = np.uint32(1 << (_FRACTION_BITS_DROPPED - 1))
    kept = ((bits + half) >> np.uint32(_FRACTION_BITS_DROPPED)) << np.uint32(_FRACTION_BITS_DROPPED)
    return float(kept.view(np.float32))


def as_kept(record: StepRecord | Event) -> StepRecord | Event:
    """The record with its numbers rounded, and what differs between machines left out."""
    if isinstance(record, Event):
        data = {k: rounded(v) if isinstance(v, float) else v for k, v in record.data.items()}
        return replace(record, time=0.0, seconds={}, data=data)
    changed: dict[str, Any] = {
        name: rounded(getattr(record, name))
        for name in _SCALARS
        if getattr(record, name) is not None
    }
    for name in _TABLES:
        table: Mapping[str, float] = getattr(record, name)
        changed[name] = {key: rounded(table[key]) for key in sorted(table)}
    changed["gauges"] = {
        key: tuple(rounded(value) for value in record.gauges[key]) for key in sorted(record.gauges)
    }
    return replace(record, time=0.0, lag_steps=0, **changed)


def write(path: Path, traces: Mapping[str, Trace]) -> None:
    """Write traces by name of run."""
    steps: list[dict[str, Any]] = []
    events: dict[str, list[str]] = {}
    for name, trace in traces.items():
        for record in trace:
            if isinstance(record, Event):
                events.setdefault(name, []).append(to_line(record))
            else:
                steps.append({"run": name} | _row(record))
    columns = sorted({key for row in steps for key in row})
    arrays = [pa.array([row.get(key) for row in steps], type=_type(key)) for key in columns]
    table = pa.table(dict(zip(columns, arrays, strict=True)))
    table = table.replace_schema_metadata(
        {"events": json.dumps(events), "runs": json.dumps([*traces])}
    )
    floats = [key for key in columns if _type(key) == pa.float32()]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table, path, compression="zstd", compression_level=19,
        use_dictionary=[key for key in columns if key not in floats],
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"), write_statistics=False,
        row_group_size=1 << 20,
    )  # fmt: skip


def read(path: Path, names: Collection[str] | None = None) -> dict[str, Trace]:
    """Traces by name of run, in the order written; events stand after the step they follow.

    Args:
        path: as `write` left it.
        names: only these runs.
    """
    chosen = None if names is None else [("run", "in", list(names))]
    table = pq.read_table(path, filters=chosen)
    metadata = pq.read_schema(path).metadata
    runs = [n for n in json.loads(metadata[b"runs"]) if names is None or n in names]
    events = {n: lines for n, lines in json.loads(metadata[b"events"]).items() if n in runs}
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    found: dict[str, list[StepRecord | Event]] = {name: [] for name in runs}
    reader = _Reader([name for name in columns if name != "run"])
    names = columns.pop("run")
    for name, row in zip(names, zip(*columns.values(), strict=True), strict=True):
        found[name].append(reader.record(row))
    for name, lines in events.items():
        found[name] = _merged(found[name], [from_line(line) for line in lines])
    return {name: tuple(trace) for name, trace in found.items()}


def _row(record: StepRecord) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(record, name) for name in (*_PLAIN, *_SCALARS)}
    for name in _TABLES:
        row |= {f"{name}.{key}": value for key, value in getattr(record, name).items()}
    for gauge, layers in record.gauges.items():
        row |= {f"gauges.{gauge}.{layer}": value for layer, value in enumerate(layers)}
    return row


def _type(column: str) -> pa.DataType:
    if column == "run":
        return pa.string()
    if column in _PLAIN:
        return pa.bool_() if get_type_hints(StepRecord)[column] is bool else pa.int32()
    return pa.float32()


class _Reader:
    """Makes records of rows whose columns are known."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._plain = [(n, c) for n, c in enumerate(columns) if c in (*_PLAIN, *_SCALARS)]
        self._tables: list[tuple[int, str, str]] = []
        gauges: list[tuple[str, int, int]] = []
        for n, column in enumerate(columns):
            table, _, key = column.partition(".")
            if table in _TABLES:
                self._tables.append((n, table, key))
            elif table == "gauges":
                gauge, _, layer = key.rpartition(".")
                gauges.append((gauge, int(layer), n))
        self._gauges = [(n, gauge) for gauge, _, n in sorted(gauges)]

    def record(self, row: Sequence[Any]) -> StepRecord:
        values: dict[str, Any] = {column: row[n] for n, column in self._plain}
        for name in _TABLES:
            values[name] = {}
        for n, table, key in self._tables:
            if row[n] is not None:
                values[table][key] = row[n]
        gauges: dict[str, list[float]] = {}
        for n, gauge in self._gauges:
            if row[n] is not None:
                gauges.setdefault(gauge, []).append(row[n])
        values["gauges"] = {name: tuple(layers) for name, layers in gauges.items()}
        return StepRecord(attempt=1, segment="1.00", time=0.0, **values)


def _merged(steps: Iterable[StepRecord | Event], events: Iterable[Any]) -> list[StepRecord | Event]:
    # Stable: an event carries the step it follows.
    return sorted([*steps, *events], key=lambda record: record.step)


def same(a: Trace, b: Trace) -> bool:
    """Two traces tell the same, NaN included."""
    return [str(asdict(r)) for r in a] == [str(asdict(r)) for r in b]
