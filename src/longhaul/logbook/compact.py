"""Compaction: closed journal files as Parquet, with roll-ups, for fast questions.

Runs outside the trainer, on any machine that sees the folder, as often as one likes. The JSON
lines stay, and stay the authority.

Enters: a run's folder and a clock. Leaves: `journal/compacted/NNNNNN.parquet` (the rows of
`queries.steps`) and `NNNNNN.rollup.parquet` (one row per 100 steps), each whole or not at all.
Never knows: what a figure means.
"""

import json
import os
import secrets
from pathlib import Path

import duckdb

from longhaul.core.clocks import STEP_BUCKETS, Clock
from longhaul.core.files import fsync_folder
from longhaul.logbook.compacted import (
    SOURCES_KEY,
    parquet_file,
    quoted,
    rollup_file,
    sources_of,
    usable_parquet,
)
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal_files import journal_files
from longhaul.logbook.lease import live_holder
from longhaul.logbook.queries import steps_sql

ROLLUP_STEPS = 100
_ROLLED_UP = ("loss", "gradient_norm", "learning_rate", "tokens_per_second")


def compact(folder: RunFolder, clock: Clock) -> list[int]:
    """Compact every attempt that is over and not compacted yet; returns their numbers.

    Raises:
        OSError: the folder cannot be written.
    """
    files = journal_files(folder.journal)
    holder = live_holder(folder, clock)
    done = usable_parquet(folder, files)
    open_attempt = holder.attempt if holder else None
    attempts = sorted({file.attempt for file in files if not file.events})
    due = [a for a in attempts if a != open_attempt and a not in done]
    folder.compacted.mkdir(exist_ok=True)
    for attempt in due:
        # Sizes first: lines that are added while they are read make the file void, not wrong.
        sources = sources_of(folder, files, attempt)
        rows = steps_sql([folder.journal / name for name in sources])
        _copy(_rollup(rows), rollup_file(folder, attempt), {})
        # Last, because this file is the one that says that the attempt is compacted.
        _copy(rows, parquet_file(folder, attempt), sources)
    return due


def _copy(query: str, path: Path, sources: dict[str, int]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    made_from = json.dumps(sources).replace("'", "''")
    try:
        with duckdb.connect() as connection:
            connection.execute(
                f"COPY ({query}) TO {quoted(temporary)} "
                f"(FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{SOURCES_KEY}: '{made_from}'}})"
            )
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def _rollup(rows: str) -> str:
    """Per 100 steps: counts, and minimum, maximum and mean of the finite values of each figure.

    The mean of tokens per second is all tokens over all seconds, not a mean of rates; its
    seconds are those of `timeline.STEP_BUCKETS`.
    """
    seconds = " + ".join(f"coalesce(seconds['{bucket}'], 0)" for bucket in STEP_BUCKETS)
    figures = []
    for name in _ROLLED_UP:
        finite = f"FILTER (isfinite({name}))"
        mean = f"avg({name}) {finite}"
        if name == "tokens_per_second":
            mean = "sum(tokens) / nullif(sum(step_seconds), 0)"
        figures += [f"min({name}) {finite} AS {name}_min", f"max({name}) {finite} AS {name}_max"]
        figures += [f"{mean} AS {name}_mean"]
    timed = f"SELECT *, {seconds} AS step_seconds FROM ({rows})"
    paced = f"SELECT *, tokens / nullif(step_seconds, 0) AS tokens_per_second FROM ({timed})"
    return (
        f"SELECT attempt, segment, min(step) AS first_step, max(step) AS last_step, "
        f"min(time) AS first_time, max(time) AS last_time, count(*) AS steps, "
        f"sum(tokens) AS tokens, sum(step_seconds) AS seconds, "
        f"count(*) FILTER (masked) AS masked, "
        f"count(*) FILTER (NOT isfinite(loss) OR NOT isfinite(gradient_norm)) AS non_finite, "
        f"{', '.join(figures)} FROM ({paced}) "
        f"GROUP BY attempt, segment, (step - 1) // {ROLLUP_STEPS} ORDER BY first_step"
    )
