"""SQL over a run's journal: Parquet where it was compacted, JSON lines for the rest.

The JSON lines are the authority: a Parquet file counts only while the files it was made from, which
it names itself, have the same sizes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO, get_args, get_type_hints

import duckdb

from longhaul.core.clocks import STEP_BUCKETS, Clock
from longhaul.core.files import write_atomically
from longhaul.core.records import Decision, Event, Finding, Record, Severity, StepRecord
from longhaul.core.strict import MOST_JOURNAL_BYTES, open_regular, parse_json
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import live_holder
from longhaul.logbook.reading import JournalFile, journal_files

SOURCES_KEY = "longhaul_sources"


def parquet_file(folder: RunFolder, attempt: int) -> Path:
    """Where the steps of an attempt lie once compacted; of a live one those of its closed files."""
    return folder.compacted / f"{attempt:06d}.parquet"


def rollup_file(folder: RunFolder, attempt: int) -> Path:
    """Where the roll-ups of an attempt lie once compacted."""
    return folder.compacted / f"{attempt:06d}.rollup.parquet"


def usable_parquet(folder: RunFolder, files: Sequence[JournalFile]) -> dict[int, dict[str, int]]:
    """Attempt → name and size of the step files that were compacted, and are the same by now."""
    usable = {}
    for attempt, own in _step_files(files).items():
        path = parquet_file(folder, attempt)
        sources = _made_from(path) if path.is_file() else None
        if sources and sources.items() <= _sizes(folder, own).items():
            usable[attempt] = sources
    return usable


def _step_files(files: Sequence[JournalFile]) -> dict[int, list[JournalFile]]:
    of_attempt: dict[int, list[JournalFile]] = {}
    for file in files:
        if not file.events:
            of_attempt.setdefault(file.attempt, []).append(file)
    return of_attempt


def _sizes(folder: RunFolder, files: Sequence[JournalFile]) -> dict[str, int]:
    return {file.name: (folder.journal / file.name).stat().st_size for file in files}


def no_pattern(path: Path) -> Path:
    """A path for DuckDB to read, which takes names as patterns: a bracket must mean itself."""
    return Path("".join(f"[{c}]" if c in "*?[" else c for c in str(path)))


def quoted(path: Path) -> str:
    """A path as an SQL text."""
    return "'" + str(path).replace("'", "''") + "'"


def _made_from(path: Path) -> dict[str, int] | None:
    try:
        with duckdb.connect() as connection:
            found = connection.execute(
                "SELECT decode(value) FROM parquet_kv_metadata(?) WHERE decode(key) = ?",
                [str(no_pattern(path)), SOURCES_KEY],
            ).fetchone()
            return dict(parse_json(found[0], str(path))) if found else None
    except (duckdb.Error, ValueError, TypeError):
        return None  # damaged, or made by something else: the JSON lines are there


# DuckDB casts the journal's words "nan", "inf" and "-inf" to DOUBLE by itself.
_SQL_TYPES: Mapping[Any, str] = {
    int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", str: "VARCHAR", Severity: "VARCHAR",
    Mapping[str, float]: "MAP(VARCHAR, DOUBLE)",
    Mapping[str, tuple[float, ...]]: "MAP(VARCHAR, DOUBLE[])",
}  # fmt: skip


def _columns(*kinds: type[Record]) -> dict[str, str]:
    types = {f.name: get_type_hints(kind)[f.name] for kind in kinds for f in fields(kind)}
    whole = {name: get_args(t)[0] if NoneType in get_args(t) else t for name, t in types.items()}
    return {name: _SQL_TYPES.get(kind, "JSON") for name, kind in whole.items()}


_STEP_FIELDS = _columns(StepRecord)
_EVENT_FIELDS = {"record": "VARCHAR"} | _columns(Event, Decision, Finding)


_NO_NETWORK: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False, "autoload_known_extensions": False,
    "allow_community_extensions": False,
}  # fmt: skip
"""DuckDB would fetch an extension for a file that needs one."""


def connect(folder: RunFolder) -> duckdb.DuckDBPyConnection:
    """A connection in memory with the views `steps`, `events` and `booked` of this run.

    `steps` has the fields of `StepRecord`, `tokens`, and the seconds `spent` on a step in all and
    `timed` as training and waiting for data; `events` those of `Event`, `Decision` and
    `Finding`, with `record` to tell them apart; `booked` the `seconds` of each `segment` by
    `bucket`, one row a record. Files of attempts that begin later are not seen.
    """
    connection = empty_connection()
    files = journal_files(folder.journal)
    for file in files:  # DuckDB would wait for a pipe that nobody writes into
        open_regular(folder.journal / file.name, MOST_JOURNAL_BYTES).close()
    compacted = usable_parquet(folder, files)
    inside = {name for sources in compacted.values() for name in sources}
    steps = [folder.journal / f.name for f in files if not f.events and f.name not in inside]
    events = [folder.journal / f.name for f in files if f.events]
    parts = [steps_sql(steps)]
    if compacted:
        parts.append(parquet_sql([parquet_file(folder, attempt) for attempt in compacted]))
    rows = " UNION ALL BY NAME ".join(parts)
    connection.execute(f"CREATE VIEW steps AS {with_seconds(rows)}")
    connection.execute(f"CREATE VIEW events AS {_rows(events, _EVENT_FIELDS)}")
    connection.execute(
        f"CREATE VIEW booked AS {booked_sql('steps')} UNION ALL "
        f"{booked_sql('events')} WHERE seconds IS NOT NULL"
    )
    return connection


def empty_connection() -> duckdb.DuckDBPyConnection:
    """A connection in memory that asks no network for anything."""
    return duckdb.connect(config=_NO_NETWORK)


_TIMED = " + ".join(f"coalesce(seconds['{bucket}'], 0)" for bucket in STEP_BUCKETS)


def with_seconds(steps: str) -> str:
    """SQL for these steps with the seconds `spent` on each in all, and those that were `timed`."""
    return f"SELECT *, list_sum(map_values(seconds)) AS spent, {_TIMED} AS timed FROM ({steps})"


def parquet_sql(files: Sequence[Path]) -> str:
    """SQL for the steps of compacted attempts."""
    # By name: what an older version compacted lacks the fields that came later.
    return f"SELECT * FROM read_parquet({_list(files)}, union_by_name=true)"


def booked_sql(rows: str) -> str:
    """SQL for the seconds that these rows booked: segment, bucket, seconds."""
    entry = "unnest(map_entries(seconds))"
    return f"SELECT segment, {entry}.key AS bucket, {entry}.value AS seconds FROM {rows}"


def steps_sql(files: Sequence[Path]) -> str:
    """SQL for the steps in these journal files; torn and damaged lines are passed over."""
    return f"SELECT *, sequences * sequence_length AS tokens FROM ({_rows(files, _STEP_FIELDS)})"


def _rows(files: Sequence[Path], fields: dict[str, str]) -> str:
    if not files:
        nothing = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in fields.items())
        return f"SELECT {nothing} WHERE false"
    columns = ", ".join(
        f"{key}: '{kind}'" for key, kind in ({"record": "VARCHAR"} | fields).items()
    )
    wanted = (
        "record IN ('event', 'decision', 'finding')" if "record" in fields else "record = 'step'"
    )
    return (
        f"SELECT {', '.join(fields)} FROM read_json({_list(files)}, format='newline_delimited', "
        f"ignore_errors=true, columns={{{columns}}}) WHERE {wanted}"
    )


def _list(files: Sequence[Path]) -> str:
    return "[" + ", ".join(quoted(no_pattern(path)) for path in files) + "]"


ROLLUP_STEPS = 100
_ROLLED_UP = ("loss", "gradient_norm", "learning_rate", "tokens_per_second")


def compact(folder: RunFolder, clock: Clock) -> list[int]:
    """Compact every file of steps that is closed and not compacted yet; returns their attempts."""
    files = journal_files(folder.journal)
    holder = live_holder(folder, clock)
    done = usable_parquet(folder, files)
    folder.compacted.mkdir(exist_ok=True)
    due = []
    for attempt, own in _step_files(files).items():
        # Sizes first: lines that are added while they are read make the file void, not wrong.
        live = holder is not None and holder.attempt == attempt
        sources = _sizes(folder, [f for f in own if not (live and _may_grow(f, own))])
        if not sources or done.get(attempt) == sources:
            continue
        rows = steps_sql([folder.journal / name for name in sources])
        _copy(_rollup(rows), rollup_file(folder, attempt), {})
        # Last, because this file is the one that says what is compacted.
        _copy(rows, parquet_file(folder, attempt), sources)
        due.append(attempt)
    return due


def _may_grow(file: JournalFile, others: Sequence[JournalFile]) -> bool:
    return file.rotation == max(f.rotation for f in others if f.author == file.author)


def _copy(query: str, path: Path, sources: dict[str, int]) -> None:
    made_from = json.dumps(sources).replace("'", "''")

    def write(file: BinaryIO) -> None:
        with duckdb.connect() as connection:
            connection.execute(
                f"COPY ({query}) TO {quoted(Path(file.name))} (FORMAT parquet, COMPRESSION zstd, "
                f"USE_TMP_FILE false, KV_METADATA {{{SOURCES_KEY}: '{made_from}'}})"
            )

    write_atomically(path, write)


def _rollup(rows: str) -> str:
    """Per 100 steps: counts, and minimum, maximum and mean of the finite values of each figure."""
    figures = []
    for name in _ROLLED_UP:
        finite = f"FILTER (isfinite({name}))"
        mean = f"avg({name}) {finite}"
        if name == "tokens_per_second":  # no mean of rates: all tokens over all seconds
            mean = "sum(tokens) / nullif(sum(timed), 0)"
        figures += [f"min({name}) {finite} AS {name}_min", f"max({name}) {finite} AS {name}_max"]
        figures += [f"{mean} AS {name}_mean"]
    timed = with_seconds(rows)
    paced = f"SELECT *, tokens / nullif(timed, 0) AS tokens_per_second FROM ({timed})"
    return (
        f"SELECT attempt, segment, min(step) AS first_step, max(step) AS last_step, "
        f"min(time) AS first_time, max(time) AS last_time, count(*) AS steps, "
        f"sum(tokens) AS tokens, sum(timed) AS seconds, "
        f"count(*) FILTER (masked) AS masked, "
        f"count(*) FILTER (NOT isfinite(loss) OR NOT isfinite(gradient_norm)) AS non_finite, "
        f"{', '.join(figures)} FROM ({paced}) "
        f"GROUP BY attempt, segment, (step - 1) // {ROLLUP_STEPS} ORDER BY first_step"
    )
