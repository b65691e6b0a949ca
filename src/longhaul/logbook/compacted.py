"""Which Parquet files may stand in for which journal files.

The JSON lines are the authority: a Parquet file counts only while the sizes of the lines it was
made from, which it names itself, are still those on disk. An attempt that was taken for dead and
wrote on makes its Parquet file void, until it is compacted again.

Enters: a run's folder. Leaves: attempt → Parquet file. Never knows: rows.
"""

from collections.abc import Sequence
from pathlib import Path

import duckdb

from longhaul.core.strict import parse_json
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal_files import JournalFile

SOURCES_KEY = "longhaul_sources"


def parquet_file(folder: RunFolder, attempt: int) -> Path:
    """Where the steps of an attempt lie once compacted."""
    return folder.compacted / f"{attempt:06d}.parquet"


def rollup_file(folder: RunFolder, attempt: int) -> Path:
    """Where the roll-ups of an attempt lie once compacted."""
    return folder.compacted / f"{attempt:06d}.rollup.parquet"


def sources_of(folder: RunFolder, files: Sequence[JournalFile], attempt: int) -> dict[str, int]:
    """Name → size in bytes of the step files of an attempt."""
    names = [f.name for f in files if f.attempt == attempt and not f.events]
    return {name: (folder.journal / name).stat().st_size for name in names}


def usable_parquet(folder: RunFolder, files: Sequence[JournalFile]) -> dict[int, Path]:
    """Attempt → Parquet file, for the attempts whose steps are the same there as in JSON."""
    attempts = sorted({file.attempt for file in files if not file.events})
    usable = {}
    for attempt in attempts:
        path = parquet_file(folder, attempt)
        if path.is_file() and _made_from(path) == sources_of(folder, files, attempt):
            usable[attempt] = path
    return usable


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
