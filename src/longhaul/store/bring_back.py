"""A run that nothing is left of here, brought back from its remote tier: its run log first.

Everything is fetched into `.book/` in the run's folder and compared before any page is put in its
place; while `.book/` is there the run has not been brought back, and the next start begins again
with that. What a start would have refused of a run's own folder it refuses of a run log, with the
same words, and leaves nothing.
"""

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from longhaul.core.clocks import Clock
from longhaul.core.errors import NeedsPerson, RecipeError, UsageError
from longhaul.core.events import EventKind
from longhaul.core.files import fsync_folder, write_json
from longhaul.core.output import Say
from longhaul.core.units import Seconds, short_bytes
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import leave_behind
from longhaul.logbook.reading import journal_files, read_last
from longhaul.logbook.run_log import RunLog
from longhaul.logbook.run_spec import (
    RunSpec,
    has_run_spec,
    read_run_spec,
    refuse_another_run,
    spec_of_restart,
)
from longhaul.store.fetching import Found, best_first, bring_run_log, find_run_log
from longhaul.store.remote_log import is_page
from longhaul.store.tiers import StoreNeeded, places_of
from longhaul.store.transfers import StoreError

_STAGING = ".book"
_NOTE = ".brought-back.json"
_OWN = ("recipe.toml", "asked.json", "nodes.jsonl")
"""What somebody has written here since is not replaced."""
_ANEW = "to train from the beginning, use --new or take checkpoint.remote out"


def bring_back(folder: RunFolder, asked: RunSpec, say: Say, clock: Clock) -> RunSpec:
    """Bring a run's log back if nothing of the run is left here; what it is asked for now.

    The run's folder need not exist; `asked` was typed, or written there without being begun.

    Raises:
        StoreNeeded: a store that may have the run log does not answer.
        RecipeError: the run log is that of another run than the recipe makes.
        NeedsPerson: the run log could not be written here.
    """
    staging = folder.path / _STAGING
    new = not journal_files(folder.journal)
    if not (new or staging.exists()):
        return asked
    if not asked.settings().checkpoint.remote:
        if new:
            return asked
        raise NeedsPerson(
            f"the run log of run {folder.name} was being brought back, and not all of it is here",
            f"set checkpoint.remote as it was, or remove {folder.path}",
        )
    began = clock.monotonic()
    run_logs = _run_logs(folder, asked, say)
    if not run_logs:
        return asked
    newest = run_logs[0].newest
    say(
        f"nothing of run {folder.name} is left here; bringing its run log back from "
        f"{run_logs[0].files.name}: begun {_date(newest.created)}, last written "
        f"{_date(newest.time)} from {newest.host} in attempt {newest.edition.attempt}"
    )
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        lacking = bring_run_log(run_logs, staging, say)
        asked = _as_of_one_run(folder, staging, asked)
        _put_in_place(folder, staging, newest.edition.attempt, clock)
        _leave_note(folder, run_logs[0], lacking, clock.monotonic() - began)
        shutil.rmtree(staging)
    except StoreError as error:
        raise _needed(folder, error.message) from error
    except OSError as error:
        raise NeedsPerson(
            f"the run log of run {folder.name} could not be written to {folder.path}: {error}",
            "mend that, and start the same command again",
        ) from error
    for page in lacking:
        say(f"WARNING: of the run log could not be had: {page}")
    say(
        f"brought back {len(newest.pages) - len(lacking)} pages, "
        f"{short_bytes(newest.size_bytes)}; --new would have begun another run"
    )
    return asked


def is_elsewhere(name: str, asked: RunSpec, say: Say) -> bool:
    """Whether a remote tier has the run log of such a run; a silent one counts as without."""
    for files in places_of(asked.settings(), name):
        try:
            if find_run_log(files) is not None:
                return True
        except StoreError as error:
            say(f"WARNING: {error.message}; if a run {name} is there, nothing will be sent to it")
    return False


def emit_if_brought_back(folder: RunFolder, run_log: RunLog) -> None:
    """Write into the journal that the run was brought back; once."""
    path = folder.path / _NOTE
    with suppress(OSError, ValueError, KeyError):
        note = json.loads(path.read_bytes())
        run_log.emit_durably(EventKind.BROUGHT_BACK, int(note.pop("step")), **note)
        path.unlink()


def _run_logs(folder: RunFolder, asked: RunSpec, say: Say) -> list[Found]:
    found, silent = [], []
    for files in places_of(asked.settings(), folder.name):
        try:
            if (run_log := find_run_log(files)) is not None:
                found.append(run_log)
        except StoreError as error:
            silent.append(error.message)
    if not found and silent:
        raise _needed(folder, silent[0])
    for message in silent:
        say(f"WARNING: {message}; it may have a newer run log of this run")
    run_logs = best_first(found) if found else []
    for run_log in found:
        if run_log not in run_logs:
            say(
                f"WARNING: in {run_log.files.name} lies the run log of another run of this name, "
                f"begun {_date(run_log.newest.created)}; it is left alone"
            )
    return run_logs


def _needed(folder: RunFolder, why: str) -> StoreNeeded:
    return StoreNeeded(
        f"nothing of run {folder.name} is here, and the store that may have it does not answer: "
        f"{why}",
        f"start the same command again when it answers; {_ANEW}",
    )


def _as_of_one_run(folder: RunFolder, staging: Path, asked: RunSpec) -> RunSpec:
    """What is asked for, judged against what the run was asked to do before it was lost."""
    staged = RunFolder(staging)
    if not has_run_spec(staged):
        return asked
    try:
        known = read_run_spec(staged)
        if has_run_spec(folder):  # written here, and not begun
            refuse_another_run(known.settings(), asked.settings())
            return asked
        return spec_of_restart(known, asked)
    except (RecipeError, UsageError):
        # With a journal some of it is in its place, and the rest must follow.
        if not journal_files(folder.journal):
            shutil.rmtree(staging)
            with suppress(OSError):
                folder.path.rmdir()
        raise


def _put_in_place(folder: RunFolder, staging: Path, attempt: int, clock: Clock) -> None:
    """Move every page where it belongs; doing it again does no harm."""
    changed = {folder.path}
    # What was asked comes last: until then a start would not know of earlier options.
    for path in sorted(staging.rglob("*"), key=lambda path: (path.name == "asked.json", path)):
        name = path.relative_to(staging).as_posix()
        target = folder.path / name
        if not path.is_file() or not is_page(name) or (name in _OWN and target.exists()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
        changed.add(target.parent)
    for parent in changed:
        fsync_folder(parent)
    # Attempts go on above every number that was given out, whether it left a journal or not.
    leave_behind(folder, attempt, clock)


def _leave_note(folder: RunFolder, run_log: Found, lacking: Sequence[str], took_s: Seconds) -> None:
    newest = run_log.newest
    write_json(
        folder.path / _NOTE,
        {
            "step": max((record.step for record in read_last(folder, 1)), default=0),
            "tier": run_log.files.name,
            "of_attempt": newest.edition.attempt,
            "written": newest.time,
            "pages": len(newest.pages),
            "size_bytes": newest.size_bytes,
            "lacking": list(lacking),
            "took_s": round(took_s, 3),
        },
    )


def _date(then: Seconds) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(then))
