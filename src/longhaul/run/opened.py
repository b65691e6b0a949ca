"""`longhaul.open`: a run as Python sees it, live, dead, finished, or in a store elsewhere.

It reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longhaul.core.clocks import RealClock
from longhaul.core.errors import UsageError
from longhaul.core.records import Finding
from longhaul.core.units import Bytes, Seconds, loss_in_words
from longhaul.logbook.folder import RunFolder, open_run
from longhaul.logbook.ledger import Health, load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.segments import SegmentOpening, read_segments
from longhaul.store.catalogue import Checkpoint, catalogue, health_of, usable_of
from longhaul.store.remote_run import RemoteRun, is_remote, look_at

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from longhaul.logbook.summary import RunSummary
    from longhaul.run.trained import Trained

_STEPS = (
    "SELECT steps.*, step <= coalesce(kept, 9223372036854775807) AS kept FROM steps "
    "LEFT JOIN (SELECT unnest({segments}::VARCHAR[]) AS segment, unnest({kept}::BIGINT[]) AS kept) "
    "USING (segment) ORDER BY attempt, time, step"
)
_BY_NAME = ("seconds", "totals", "source_losses")
"""Columns of steps that hold a figure for each of some names."""


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint that a run holds."""

    step: int
    health: Health
    """`verified` and `good` ones have been read back; `poisoned` ones are never loaded."""
    time: Seconds
    """Unix time at which it was written."""
    size_bytes: Bytes
    path: Path
    """Its folder; in a store, below the run's address."""


class Run:
    """A run: its journal as tables, its segments, findings and checkpoints, its model.

    Every call reads the run's files as they are by then, so a live run can be watched.
    """

    def __init__(
        self,
        folder: RunFolder,
        remote: RemoteRun | None = None,
        prepared: Path = Path("prepared"),
        say: Callable[[str], None] = print,
    ) -> None:
        self._folder = folder
        self._remote = remote
        self._prepared = prepared
        self._say = say

    @property
    def name(self) -> str:
        """The run's name."""
        return self._folder.name

    @property
    def path(self) -> Path:
        """The run's folder; of one in a store, where its log has been copied to."""
        return self._folder.path

    def refresh(self) -> Run:
        """Fetch what the log of a run in a store has gained; elsewhere nothing needs to be done."""
        if self._remote is not None:
            self._remote.refresh()
        return self

    def summary(self) -> RunSummary:
        """State, step, losses, goodput and where the time went."""
        from longhaul.logbook.summary import summarize

        return summarize(self._folder, RealClock())

    def settings(self) -> dict[str, Any]:
        """The settings in force, as nested tables."""
        segments = self.segments()
        if not segments:
            raise UsageError(f"run {self.name}: has no segments yet", "it has one once it trains")
        last = max(segments, key=lambda opening: (opening.attempt, opening.opened))
        return dict(last.settings)

    def steps(self) -> pyarrow.Table:
        """One row a step, in the order in which they were made; see `StepRecord` for the columns.

        `tokens` is what the step read. `kept` is false for steps that were rolled back, or lost
        with their process, and made again: filter by it for the curve of the present weights.
        """
        from longhaul.logbook.summary import kept_until

        kept = kept_until(read_segments(self._folder))
        segments = ", ".join(f"'{segment}'" for segment in kept)
        limits = ", ".join(map(str, kept.values()))
        return self.query(_STEPS.format(segments=f"[{segments}]", kept=f"[{limits}]"))

    def events(self) -> pyarrow.Table:
        """Events, decisions and findings, one a row (column `record`), in the order of time."""
        return self.query("SELECT * FROM events ORDER BY time, step")

    def query(self, sql: str) -> pyarrow.Table:
        """The result of SQL over the tables `steps` and `events`, in DuckDB's dialect.

        `data` of events is JSON: `data->>'reason'`. UsageError if the SQL is wrong.
        """
        import duckdb

        from longhaul.logbook.queries import connect

        with connect(self._folder) as connection:
            try:
                found = connection.sql(sql)
                if found is None:
                    raise UsageError(f"{sql[:200]!r} gives no table", "begin it with SELECT")
                return found.to_arrow_table()
            except duckdb.Error as error:
                first = str(error).partition("\n")[0]
                raise UsageError(f"this SQL does not work: {first}", "see `Run.query`") from None

    def frame(self) -> pandas.DataFrame:
        """`steps` as a pandas frame: seconds, totals and losses of sources in columns of their own,
        such as `seconds.training`. UsageError without pandas.
        """
        try:
            import pandas
        except ImportError:
            raise UsageError(
                "frame() needs pandas, which is not installed",
                "pip install pandas, or take `steps()`, an Arrow table",
            ) from None
        steps = self.steps().to_pandas(maps_as_pydicts="strict")
        wide = [steps.drop(columns=list(_BY_NAME))]
        for column in _BY_NAME:
            each = [values or {} for values in steps[column]]
            wide.append(pandas.DataFrame(each, index=steps.index).add_prefix(f"{column}."))
        return pandas.concat(wide, axis=1)

    def segments(self) -> tuple[SegmentOpening, ...]:
        """The stretches of the run under one set of settings each, by number."""
        return read_segments(self._folder)

    def findings(self) -> list[Finding]:
        """What the detectors found, in order."""
        records = read_journal(self._folder, steps=False)
        return [record for record in records if isinstance(record, Finding)]

    def checkpoints(self) -> list[KeptCheckpoint]:
        """The checkpoints that are there, lowest step first."""
        ledger, _ = load_ledger(self._folder)
        there = self._catalogue()
        return [
            KeptCheckpoint(
                c.step, health_of(c, ledger.checkpoint_health), c.time, c.size_bytes, c.path
            )
            for c in there
            if not c.damage
        ]

    def load_model(self, step: int | None = None) -> Trained:
        """The model as of a checkpoint, the newest when `step` is absent, on this machine's device.

        `.model` is the torch module in evaluation mode, `.dataset.tokenizer` the tokenizer,
        `.write(prompt)` yields text. Of a run in a store the model is fetched, without the
        optimizer's state. UsageError if there is no such checkpoint, or it is damaged.
        """
        from longhaul.run.trained import open_trained

        if self._remote is None:
            return open_trained(str(self._folder.path), Path(), step)
        from longhaul.run.elsewhere import fetched_model, text_here

        ledger, _ = load_ledger(self._folder)
        # Of several at one step the last one made is of the line that the run is on.
        there = {c.step: c for c in usable_of(self._catalogue(), ledger.checkpoint_health)}
        if not there or (step is not None and step not in there):
            known = ", ".join(map(str, there)) or "none"
            which = "a checkpoint" if step is None else f"checkpoint step-{step}"
            raise UsageError(f"{self._remote.address} does not have {which}", f"it has: {known}")
        dataset = text_here(self._remote, self._prepared, self._say)
        chosen = there[max(there) if step is None else step]
        with fetched_model(self._remote, chosen, dataset, self._say, by_layer=False) as found:
            return found.trained

    def _catalogue(self) -> list[Checkpoint]:
        if self._remote is not None:
            return self._remote.checkpoints()
        return catalogue(self._folder.checkpoints)

    def __repr__(self) -> str:
        summary = self.summary()
        total = f"/{summary.total_steps:,}" if summary.total_steps else ""
        words = f"run {self.name}: {summary.state}, step {summary.step:,}{total}"
        if summary.validation_loss is not None:
            bits = summary.bits_per_byte
            loss = loss_in_words(summary.validation_loss, float("nan") if bits is None else bits)
            words += f", validation loss {loss}"
        return words


def open(  # noqa: A001 (read as `longhaul.open`)
    run: str | Path,
    runs_dir: str | Path = "runs",
    prepared_dir: str | Path = "prepared",
    say: Callable[[str], None] = print,
) -> Run:
    """Open a run for reading.

    Args:
        run: its name in `runs_dir`, its folder, or its address in a store: what
            `checkpoint.remote` says, with the run's name behind it.
        runs_dir: the folder that holds the runs; the log of one in a store is copied below it.
        prepared_dir: folder of prepared text, in which that of a run in a store is looked for, or
            prepared, before its model is loaded: the tokenizer lies there.
        say: told what a store does wrong, and what could not be fetched.

    Raises:
        UsageError: there is no such run, or a newer longhaul wrote it.
        StoreError: the store does not answer.
    """
    runs = Path(runs_dir)
    if is_remote(run):
        remote = look_at(str(run), runs, say)
        return Run(remote.folder, remote, Path(prepared_dir), say)
    return Run(open_run(run, runs))
