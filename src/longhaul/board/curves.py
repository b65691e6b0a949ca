"""Curves and gauges of a run, thinned so that a million steps stay a page of a few megabytes.

Columns of gauges are in the order in which things happened, so that the growth that led to a
rollback stands before the repair; each tells whether it was kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import duckdb

from longhaul.board.forecast import Danger, as_data, in_words, mark
from longhaul.logbook.segments import SegmentOpening, by_opening
from longhaul.logbook.summary import kept_until

MOST_POINTS = 4000
"""Of one curve: more cannot be told apart on a screen, and fewer would hide nothing either,
because each bucket keeps its smallest and its largest value."""
_MOST_RATES = 600
_MOST_MEANS = 400


@dataclass(frozen=True)
class Curve:
    """One stretch of a figure."""

    segment: str
    place: int
    """Of its segment in the order in which they were opened."""
    kept: bool
    """The run's present weights hold these steps."""
    x: tuple[float, ...]
    y: tuple[float, ...]


def note_kept(connection: duckdb.DuckDBPyConnection, openings: Sequence[SegmentOpening]) -> None:
    """Note in the table `kept` which steps of these segments the run's present weights hold."""
    limits = kept_until(openings)
    names = [str(opening.number) for opening in by_opening(openings)]
    connection.execute(
        "CREATE OR REPLACE TABLE kept AS SELECT unnest(?::VARCHAR[]) AS segment, "
        "unnest(?::BIGINT[]) AS place, unnest(?::BIGINT[]) AS kept",
        [names, list(range(len(names))), [limits[name] for name in names]],
    )


def thinned(
    connection: duckdb.DuckDBPyConnection,
    figures: Sequence[str],
    most_points: int = MOST_POINTS,
) -> dict[str, list[Curve]]:
    """Of each figure (see `_FIGURES`) step → its value, by smallest and largest of every bucket; at
    most so many points where segments do not overlap.
    """
    ends = {
        figure: {f"arg_{end}(step, {figure})": f"{end}({figure})" for end in ("min", "max")}
        for figure in figures
    }
    return _bucketed(connection, ends, most_points // 2)


def means(connection: duckdb.DuckDBPyConnection, figures: Sequence[str]) -> dict[str, list[Curve]]:
    """Step → mean of each figure over about 400 buckets; none where every step can be seen."""
    if _bucket_width(connection, MOST_POINTS // 2) == 1:
        return {figure: [] for figure in figures}
    of = {figure: {"max(step)": f"avg({figure})"} for figure in figures}
    return _bucketed(connection, of, _MOST_MEANS)


def pace(connection: duckdb.DuckDBPyConnection) -> dict[str, list[Curve]]:
    """`throughput`: step → target tokens a second, of whole buckets, as steps may be seen complete
    together. `progress`: seconds since 1970 → step, which falls back where a run does.
    """
    rate = "sum(tokens) / nullif(sum(timed), 0)"
    of = {"throughput": {"max(step)": rate}, "progress": {"max(time)": "max(step)"}}
    return _bucketed(connection, of, _MOST_RATES)


def tokens_seen(connection: duckdb.DuckDBPyConnection) -> tuple[list[int], list[int]]:
    """At some 600 steps the target tokens that the present weights have seen by then."""
    width = _bucket_width(connection, _MOST_RATES)
    rows = connection.execute(
        f"SELECT max(step), sum(tokens) FROM steps JOIN kept USING (segment) WHERE step <= kept "
        f"GROUP BY step // {width} ORDER BY 1"
    ).fetchall()
    return [row[0] for row in rows], list(accumulate(int(row[1]) for row in rows))


def step_totals(connection: duckdb.DuckDBPyConnection) -> tuple[int, int, int]:
    """Target tokens of the present weights, those of lost steps, and updates held back in all."""
    row = connection.execute(
        "SELECT coalesce(sum(tokens) FILTER (step <= kept), 0), "
        "coalesce(sum(tokens) FILTER (step > kept), 0), count(*) FILTER (masked) "
        "FROM steps LEFT JOIN kept USING (segment)"
    ).fetchone()
    return (int(row[0]), int(row[1]), int(row[2])) if row else (0, 0, 0)


_FIGURES = ("loss", "gradient_norm", "learning_rate", "loss_scale")
# Made finite here once: a filter of each aggregate would look at each value four times.
_FINITE_STEPS = (
    "SELECT segment, place, step <= kept AS kept, step, time, tokens, timed, "
    + ", ".join(f"if(isfinite({figure}), {figure}, NULL) AS {figure}" for figure in _FIGURES)
    + " FROM steps JOIN kept USING (segment)"
)


def _bucketed(
    connection: duckdb.DuckDBPyConnection, figures: Mapping[str, Mapping[str, str]], most: int
) -> dict[str, list[Curve]]:
    """Of each of so many buckets of steps the points of each figure (x → y) that are finite."""
    width = _bucket_width(connection, most)
    points_sql = ", ".join(
        f"{{'figure': '{figure}', 'x': ({x})::DOUBLE, 'y': ({y})::DOUBLE}}"
        for figure, points in figures.items()
        for x, y in points.items()
    )
    rows = connection.execute(
        f"SELECT point.figure, segment, place, kept, point.x, point.y FROM "
        f"(SELECT segment, place, kept, unnest([{points_sql}]) AS point FROM ({_FINITE_STEPS}) "
        f"GROUP BY segment, place, kept, step // {width}) "
        f"WHERE isfinite(point.y) ORDER BY place, point.x, point.y"
    ).fetchall()
    points: dict[tuple[str, str, int, bool], dict[float, float]] = {}
    for figure, segment, place, kept, x, y in rows:
        at = int(x) if x.is_integer() else x
        points.setdefault((figure, segment, place, kept), {})[at] = y
    curves: dict[str, list[Curve]] = {figure: [] for figure in figures}
    for (figure, segment, place, kept), curve in points.items():
        curves[figure].append(Curve(segment, place, kept, tuple(curve), tuple(curve.values())))
    return curves


def _bucket_width(connection: duckdb.DuckDBPyConnection, buckets: int) -> int:
    row = connection.execute("SELECT coalesce(max(step) - min(step), 0) FROM steps").fetchone()
    return int(row[0]) // max(buckets, 1) + 1 if row else 1


_MOST_COLUMNS = 400
# What a column keeps of its records: the extreme where a gauge is one, else the mean.
_KEPT_OF = (
    "CASE WHEN regexp_matches(key, '(^|_)min($|\\.)') THEN min(value) "
    "WHEN regexp_matches(key, '(^|_)max($|_|\\.)') THEN max(value) ELSE avg(value) END"
)

_LAYERS = (
    "SELECT col, e.key AS key, unnest(e.value) AS value, "
    "generate_subscripts(e.value, 1) AS layer "
    "FROM (SELECT col, unnest(map_entries(gauges)) AS e FROM columned)"
)
_TOTALS = (
    "SELECT source, col, e.key AS key, e.value AS value "
    "FROM (SELECT false AS source, col, unnest(map_entries(totals)) AS e FROM columned UNION ALL "
    "SELECT true, col, unnest(map_entries(source_losses)) FROM columned)"
)

Row = tuple[float | None, ...]
"""One value a column; None where nothing finite was measured."""


@dataclass(frozen=True)
class ModelGauges:
    """Every gauge of a run, column by column, with the fields that the page's script reads."""

    step: tuple[int, ...] = ()
    """Last step of each column."""
    segment: tuple[str, ...] = ()
    kept: tuple[bool, ...] = ()
    layers: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    """Gauge → one row a layer."""
    totals: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)
    """Gauge → role of weights, source, or empty → its row."""
    dangers: tuple[Danger, ...] = ()
    """What is forecast, the most pressing first."""
    lines: Mapping[str, float] = field(default_factory=dict)
    """Gauge, or gauge.role → from where on it is dangerous."""

    def dangers_of(self, gauge: str, *, layered: bool) -> list[Danger]:
        """Those of a gauge of layers, or of the whole model."""
        return [d for d in self.dangers if d.gauge == gauge and (d.layer is not None) == layered]

    def opens_on(self, *, layered: bool) -> str:
        """The gauge to be shown first: the most pressing one, or the first."""
        names = list(self.layers if layered else self.totals)
        pressing = [d.gauge for d in self.dangers if (d.layer is not None) == layered]
        return next((name for name in [*pressing, *names] if name in names), "")

    def words_of(self, gauge: str, *, layered: bool) -> tuple[str, str]:
        """What the menu and the line below the chart say of a gauge."""
        found = self.dangers_of(gauge, layered=layered)
        own = {line for key, line in self.lines.items() if key.partition(".")[0] == gauge}
        danger = mark(found)
        label = f"{gauge.replace('_', ' ')}{' · ' * bool(danger)}{danger}"
        return label, in_words(found, min(own, default=None))

    def as_json(self) -> Mapping[str, Any]:
        """What the page's script reads: `words` and `opens` have one part for each menu."""
        menus = {"gauge": (self.layers, True), "total": (self.totals, False)}
        words = {
            menu: {gauge: self.words_of(gauge, layered=layered) for gauge in gauges}
            for menu, (gauges, layered) in menus.items()
        }
        opens = {menu: self.opens_on(layered=layered) for menu, (_, layered) in menus.items()}
        dangers = list(as_data(self.dangers))
        return vars(self) | {"dangers": dangers, "words": words, "opens": opens}


def read_model_gauges(connection: duckdb.DuckDBPyConnection) -> ModelGauges:
    """Read all gauges of the table `gauged` in at most about 400 columns."""
    columns = _columns(connection)
    if not columns:
        return ModelGauges()
    layers: dict[str, dict[int, dict[int, float]]] = {}
    for gauge, layer, column, value in _values(connection, "key, layer", _LAYERS):
        layers.setdefault(gauge, {}).setdefault(layer - 1, {})[column] = value
    totals: dict[str, dict[str, dict[int, float]]] = {}
    for source, key, column, value in _values(connection, "source, key", _TOTALS):
        gauge, _, role = ("source_losses", "", key) if source else key.partition(".")
        totals.setdefault(gauge, {}).setdefault(role, {})[column] = value
    connection.execute("DROP TABLE columned")
    count = len(columns)
    step, segment, kept = zip(*columns, strict=True)
    return ModelGauges(
        step,
        segment,
        kept,
        layers={
            gauge: tuple(_row(of_layer.get(layer, {}), count) for layer in range(max(of_layer) + 1))
            for gauge, of_layer in sorted(layers.items(), key=_by_interest)
        },
        totals={
            gauge: {role: _row(values, count) for role, values in sorted(roles.items())}
            for gauge, roles in sorted(totals.items())
        },
    )


def _columns(connection: duckdb.DuckDBPyConnection) -> list[tuple[int, str, bool]]:
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE numbered AS SELECT segment, place, step, "
        "step <= kept AS kept, gauges, totals, source_losses, "
        "row_number() OVER (ORDER BY place, step) AS number FROM gauged JOIN kept USING (segment)"
    )
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE columned AS SELECT *, "
        f"dense_rank() OVER (ORDER BY place, kept DESC, number // "
        f"(1 + (SELECT count(*) FROM numbered) // {_MOST_COLUMNS})) - 1 AS col FROM numbered"
    )
    connection.execute("DROP TABLE numbered")
    return connection.execute(
        "SELECT max(step), any_value(segment), any_value(kept) FROM columned "
        "GROUP BY col ORDER BY col"
    ).fetchall()


def _values(connection: duckdb.DuckDBPyConnection, what: str, rows: str) -> list[Any]:
    """`what` names a row, its column, and the value kept there, of rows with col, key and value."""
    return connection.execute(
        f"SELECT {what}, col, {_KEPT_OF} FROM ({rows}) WHERE isfinite(value) GROUP BY {what}, col"
    ).fetchall()


def _row(values: Mapping[int, float], count: int) -> Row:
    return tuple(short(values[at]) if at in values else None for at in range(count))


_WARN_FIRST = ("attention_logit_max", "residual_max", "residual_max_abs")


def _by_interest(item: tuple[str, Any]) -> tuple[int, str]:
    gauge = item[0]
    return _WARN_FIRST.index(gauge) if gauge in _WARN_FIRST else len(_WARN_FIRST), gauge


def short(value: float) -> float:
    """Five digits of a figure; more cannot be seen."""
    return float(f"{value:.5g}")
