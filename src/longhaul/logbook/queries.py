"""SQL over a run's journal: Parquet where it was compacted, JSON lines for the rest.

Enters: a run's folder. Leaves: a DuckDB connection with the views `steps` and `events`; also
for compaction, the SQL that turns JSON lines into the same rows.
Never knows: what is asked.
"""

from collections.abc import Sequence
from pathlib import Path

import duckdb

from longhaul.core.strict import MOST_JOURNAL_BYTES, open_regular
from longhaul.logbook.compacted import no_pattern, quoted, usable_parquet
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal_files import journal_files

# DuckDB casts the journal's words "nan", "inf" and "-inf" to DOUBLE by itself.
_STEP_FIELDS = {
    "attempt": "BIGINT", "segment": "VARCHAR", "step": "BIGINT", "draw": "BIGINT",
    "next_draw": "BIGINT", "time": "DOUBLE", "lag_steps": "BIGINT", "loss": "DOUBLE",
    "gradient_norm": "DOUBLE", "learning_rate": "DOUBLE", "masked": "BOOLEAN",
    "loss_scale": "DOUBLE", "loss_scale_at_floor": "BOOLEAN",
    "sequences": "BIGINT", "sequence_length": "BIGINT", "mixture_stage": "BIGINT",
    "attention_window": "BIGINT", "warmup": "BOOLEAN",
    "evaluation_due": "BOOLEAN", "save_due": "BOOLEAN", "redone": "BOOLEAN",
    "seconds": "MAP(VARCHAR, DOUBLE)", "gauges": "MAP(VARCHAR, DOUBLE[])",
    "totals": "MAP(VARCHAR, DOUBLE)", "source_losses": "MAP(VARCHAR, DOUBLE)",
    "states": "JSON",
}  # fmt: skip
_EVENT_FIELDS = {
    "record": "VARCHAR", "kind": "VARCHAR", "attempt": "BIGINT", "segment": "VARCHAR",
    "step": "BIGINT", "from_step": "BIGINT", "time": "DOUBLE", "who": "VARCHAR",
    "reason": "VARCHAR", "seconds": "MAP(VARCHAR, DOUBLE)", "data": "JSON",
    "severity": "VARCHAR", "first_step": "BIGINT", "first_draw": "BIGINT", "subject": "VARCHAR",
    "evidence": "MAP(VARCHAR, DOUBLE)", "sentence": "VARCHAR",
}  # fmt: skip


_NO_NETWORK: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False, "autoload_known_extensions": False,
    "allow_community_extensions": False,
}  # fmt: skip
"""DuckDB would fetch an extension for a file that needs one."""


def connect(folder: RunFolder) -> duckdb.DuckDBPyConnection:
    """A connection in memory with the views `steps` and `events` of this run.

    `steps` has the fields of `StepRecord` and `tokens`; `events` those of `Event`, `Decision` and
    `Finding`, with `record` to tell them apart. Files of attempts that begin later are not seen.
    """
    connection = duckdb.connect(config=_NO_NETWORK)
    files = journal_files(folder.journal)
    for file in files:  # DuckDB would wait for a pipe that nobody writes into
        open_regular(folder.journal / file.name, MOST_JOURNAL_BYTES).close()
    parquet = usable_parquet(folder, files)
    steps = [folder.journal / f.name for f in files if not f.events and f.attempt not in parquet]
    events = [folder.journal / f.name for f in files if f.events]
    parts = [steps_sql(steps)]
    if parquet:
        # By name: what an older version compacted lacks the fields that came later.
        files_sql = _list(list(parquet.values()))
        parts.append(f"SELECT * FROM read_parquet({files_sql}, union_by_name=true)")
    connection.execute(f"CREATE VIEW steps AS {' UNION ALL BY NAME '.join(parts)}")
    connection.execute(f"CREATE VIEW events AS {_rows(events, _EVENT_FIELDS)}")
    return connection


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
