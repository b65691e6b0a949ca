"""The loss of a long run from the roll-ups of compacted attempts: there before the run is read."""

from longhaul.board.curves import note_kept, thinned
from longhaul.board.figures import Figure, loss_preview
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.queries import empty_connection, parquet_sql, rollup_file, usable_parquet
from longhaul.logbook.reading import journal_files
from longhaul.logbook.segments import read_segments

_FEWEST = 1000
"""Roll-ups: the steps of a shorter run are read as soon."""
# Of a roll-up its smallest loss at its first step, and its largest at its last.
_STEPS = "CREATE VIEW steps AS " + " UNION ALL ".join(
    f"SELECT segment, {end}_step AS step, loss_{of} AS loss, {end}_time AS time, tokens, "
    f"seconds AS timed, gradient_norm_{of} AS gradient_norm, "
    f"learning_rate_{of} AS learning_rate, NULL::DOUBLE AS loss_scale FROM rollups"
    for end, of in (("first", "min"), ("last", "max"))
)


def preview(folder: RunFolder) -> Figure | None:
    """The figure, without what is not compacted yet; None of a run too short to need one."""
    attempts = usable_parquet(folder, journal_files(folder.journal))
    rollups = [path for each in attempts if (path := rollup_file(folder, each)).is_file()]
    if not rollups:
        return None
    with empty_connection() as connection:
        connection.execute(f"CREATE VIEW rollups AS {parquet_sql(rollups)}")
        count = connection.execute("SELECT count(*) FROM rollups").fetchone()
        if count is None or count[0] < _FEWEST:
            return None
        connection.execute(_STEPS)
        note_kept(connection, read_segments(folder))
        return loss_preview(thinned(connection, ("loss",))["loss"])
