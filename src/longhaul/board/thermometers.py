"""The gauges of a run as columns: per layer for the heat map, and of the model as a whole.

Columns are in the order in which things happened, so that the growth that led to a rollback
stands before the repair; each tells whether it was kept.

Enters: a settled connection (`curves.settle`). Leaves: columns and figures for each of them.
Never knows: what a gauge means, or how it is drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import duckdb

_MOST_COLUMNS = 400
# What a column keeps of its records: the extreme where a gauge is one, else the mean.
_KEPT_OF = (
    "CASE WHEN regexp_matches(key, '(^|_)min($|\\.)') THEN min(value) "
    "WHEN regexp_matches(key, '(^|_)max($|_|\\.)') THEN max(value) ELSE avg(value) END"
)

Row = tuple[float | None, ...]
"""One value a column; None where nothing finite was measured."""


@dataclass(frozen=True)
class Thermometers:
    """Every gauge of a run, column by column."""

    step: tuple[int, ...] = ()
    """Last step of each column."""
    segment: tuple[str, ...] = ()
    kept: tuple[bool, ...] = ()
    layers: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    """Gauge → one row a layer."""
    totals: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)
    """Gauge → role of weights, source, or empty → its row."""


def read_thermometers(connection: duckdb.DuckDBPyConnection) -> Thermometers:
    """Read all gauges in at most about 400 columns."""
    columns = _columns(connection)
    if not columns:
        return Thermometers()
    layers: dict[str, dict[int, dict[int, float]]] = {}
    for gauge, layer, column, value in _layer_values(connection):
        layers.setdefault(gauge, {}).setdefault(layer - 1, {})[column] = value
    totals: dict[str, dict[str, dict[int, float]]] = {}
    for source, key, column, value in _total_values(connection):
        gauge, _, role = ("source_losses", "", key) if source else key.partition(".")
        totals.setdefault(gauge, {}).setdefault(role, {})[column] = value
    count = len(columns)
    return Thermometers(
        step=tuple(row[0] for row in columns),
        segment=tuple(row[1] for row in columns),
        kept=tuple(bool(row[2]) for row in columns),
        layers={
            gauge: tuple(_row(of_layer.get(layer, {}), count) for layer in range(max(of_layer) + 1))
            for gauge, of_layer in layers.items()
        },
        totals={
            gauge: {role: _row(values, count) for role, values in sorted(roles.items())}
            for gauge, roles in totals.items()
        },
    )


def _columns(connection: duckdb.DuckDBPyConnection) -> list[tuple[int, str, bool]]:
    connection.execute(
        "CREATE TABLE gauged AS SELECT segment, place, step, step <= kept AS kept, "
        "gauges, totals, source_losses, row_number() OVER (ORDER BY place, step) AS number "
        "FROM steps JOIN kept USING (segment) WHERE cardinality(coalesce(gauges, MAP {})) + "
        "cardinality(coalesce(totals, MAP {})) + cardinality(coalesce(source_losses, MAP {})) > 0"
    )
    connection.execute(
        f"CREATE TABLE columned AS SELECT *, dense_rank() OVER (ORDER BY place, kept DESC, "
        f"number // (1 + (SELECT count(*) FROM gauged) // {_MOST_COLUMNS})) - 1 AS col FROM gauged"
    )
    return connection.execute(
        "SELECT max(step), any_value(segment), any_value(kept) FROM columned "
        "GROUP BY col ORDER BY col"
    ).fetchall()


def _layer_values(
    connection: duckdb.DuckDBPyConnection,
) -> list[tuple[str, int, int, float]]:
    entries = "SELECT col, unnest(map_entries(gauges)) AS e FROM columned"
    values = (
        f"SELECT col, e.key AS key, unnest(e.value) AS value, "
        f"generate_subscripts(e.value, 1) AS layer FROM ({entries})"
    )
    return connection.execute(
        f"SELECT key, layer, col, {_KEPT_OF} FROM ({values}) WHERE isfinite(value) "
        f"GROUP BY key, layer, col"
    ).fetchall()


def _total_values(
    connection: duckdb.DuckDBPyConnection,
) -> list[tuple[bool, str, int, float]]:
    entries = (
        "SELECT false AS source, col, unnest(map_entries(totals)) AS e FROM columned UNION ALL "
        "SELECT true, col, unnest(map_entries(source_losses)) FROM columned"
    )
    values = f"SELECT source, col, e.key AS key, e.value AS value FROM ({entries})"
    return connection.execute(
        f"SELECT source, key, col, {_KEPT_OF} FROM ({values}) WHERE isfinite(value) "
        f"GROUP BY source, key, col"
    ).fetchall()


def _row(values: Mapping[int, float], count: int) -> Row:
    return tuple(values.get(column) for column in range(count))
