"""The prepared text of a run, pinned when it first trains.

Enters: a run's folder and what it was asked. Leaves: the very text it was trained on, even if
the sources have grown, moved or gone since. Never knows: how text is prepared.
"""

from collections.abc import Callable
from pathlib import Path

from longhaul.core.errors import DataError, UsageError
from longhaul.core.files import write_json
from longhaul.core.strict import read_object
from longhaul.data.dataset import Dataset, open_dataset
from longhaul.data.prepare import prepare
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.run_spec import Asked


def text_for_training(folder: RunFolder, asked: Asked, say: Callable[[str], None]) -> Dataset:
    """The run's pinned text, or text prepared now and pinned.

    Raises:
        DataError: the text cannot be prepared, or is no longer what the run was trained on.
    """
    pinned = _pinned(folder)
    if pinned is not None:
        where, identity = pinned
        try:
            dataset = open_dataset(where)
        except (DataError, OSError):
            dataset = prepare(asked.settings(), Path(asked.prepared), say)
        else:
            say(f"data: reusing {_listed(dataset.summary())}")
        if dataset.identity != identity:
            raise DataError(
                f"run {folder.name} was trained on prepared text {identity[:12]}, which is gone "
                f"from {where}; its sources now give {dataset.identity[:12]}",
                "put the prepared text or the sources back, or start another run with --new",
            )
        return dataset
    dataset = prepare(asked.settings(), Path(asked.prepared), say)
    text = {"folder": str(dataset.folder.resolve()), "identity": dataset.identity}
    write_json(_path(folder), text)
    return dataset


def text_of(folder: RunFolder) -> Dataset:
    """The text a run was trained on, for reading only.

    Raises:
        UsageError: the run has none yet, or it is gone.
    """
    pinned = _pinned(folder)
    if pinned is None:
        raise UsageError(f"run {folder.name} has not been trained yet", "start it first")
    where, identity = pinned
    try:
        dataset = open_dataset(where)
    except (DataError, OSError) as error:
        why = error.message if isinstance(error, DataError) else error
        raise UsageError(
            f"the prepared text of run {folder.name} is gone from {where} ({why})",
            f"`longhaul train {folder.path}` prepares it again",
        ) from error
    if dataset.identity != identity:
        raise UsageError(f"{where} holds other text than run {folder.name} was trained on")
    return dataset


def _listed(summary: str) -> str:
    """One source beside what is said of it, several each on a line of its own."""
    lines = summary.splitlines()
    return "\n  ".join([f"{len(lines)} sources", *lines]) if len(lines) > 1 else summary


def _pinned(folder: RunFolder) -> tuple[Path, str] | None:
    try:
        body = read_object(_path(folder))
        return Path(body["folder"]), str(body["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(folder: RunFolder) -> Path:
    return folder.path / "text.json"
