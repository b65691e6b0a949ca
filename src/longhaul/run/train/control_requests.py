"""Asking something of a run: `longhaul set`, `rollback`, `fork`, `stop`, `note`.

A request is laid into the run's folder; the answer is read in its journal, if one trains it now.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from longhaul.config.load import parse_override, with_overrides
from longhaul.core.clocks import RealClock
from longhaul.core.errors import UsageError
from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import live_holder, user_name
from longhaul.logbook.ledger import CheckpointHealth
from longhaul.logbook.moves import refuse_if_moved
from longhaul.logbook.reading import read_journal
from longhaul.logbook.requests import changed_recipe, refuse_resets, submit
from longhaul.logbook.run_history import read_run_history
from longhaul.logbook.run_spec import has_run_spec, read_run_spec
from longhaul.store.catalogue import usable

_LOOK_EVERY_S: Seconds = 0.1


def request_set(
    folder: RunFolder, change: str, reason: str, wait_s: Seconds, force: bool = False
) -> str:
    """Ask for one setting to change, by `path=value`; the answer in words. `force` asks for a value
    that looks like a slip of the pen. RecipeError if there is no such setting, or the value is
    impossible; UsageError if the run refused.
    """
    path, value = parse_override(change)
    made = read_run_history(folder).steps_made
    _refuse_change(folder, {path: value}, {path: change}, made, force)
    answer = _request(folder, "set", {"path": path, "value": value, "force": force}, reason, wait_s)
    if answer is None:
        return f"asked: {path} = {value!r}; it holds from the run's next start on"
    return f"step {answer.step}: {path} {answer.data.get('old')!r} → {value!r}"


def request_rollback(folder: RunFolder, to_step: int, reason: str, wait_s: Seconds) -> str:
    """Ask for the newest state at or before a step; the answer, UsageError if it is refused."""
    states = _states_at_rest(folder, to_step)
    if states and to_step >= states[-1]:
        raise UsageError(
            f"step {to_step}: run {folder.name} goes on from step {states[-1]}; "
            "nothing to go back to"
        )
    answer = _request(folder, "rollback", {"to": to_step}, reason, wait_s)
    if answer is None:
        return f"asked: back to step {to_step}; the run goes back when it is next started"
    return f"step {answer.step}: {_went_back(answer)}"


def request_fork(
    folder: RunFolder,
    at_step: int,
    changes: Sequence[str],
    resets: Sequence[str],
    reason: str,
    wait_s: Seconds,
    force: bool = False,
) -> str:
    """Ask a run to begin a new line of descent at a step; the answer in words. Errors as from
    `request_set`, and UsageError if the run has not come so far.
    """
    states = _states_at_rest(folder, at_step)
    refuse_resets(resets)
    if states and at_step > states[-1]:
        raise UsageError(
            f"step {at_step}: its newest checkpoint is of step {states[-1]}",
            f"fork there: --at {states[-1]}",
        )
    changed: dict[str, Any] = {}
    typed: dict[str, str] = {}
    for change in changes:
        path, value = parse_override(change)
        if path in changed:
            raise UsageError(f"--set {path}: given twice", "give it once")
        changed[path], typed[path] = value, f"--set {change}"
    _refuse_change(folder, changed, typed, at_step, force)
    data = {"at": at_step, "set": changed, "reset": list(resets), "force": force}
    answer = _request(folder, "fork", data, reason, wait_s)
    if answer is None:
        return f"asked: a fork at step {at_step}; it is made when the run is next started"
    also = [f"{path} = {value!r}" for path, value in answer.data.get("set", {}).items()]
    also += [f"fresh {what}" for what in resets]
    return f"step {answer.step}: forked; " + "; ".join([_went_back(answer), *also])


def _went_back(answer: Decision | Event) -> str:
    rollback = answer.data.get("rollback")
    return f"back to step {rollback['to']}" if rollback else "going on from there"


def _states_at_rest(folder: RunFolder, step: int) -> list[int]:
    """Steps a resting run can go back to, rising; none while it trains: it answers itself then.
    UsageError if it has not come to `step`, or has no state of that step or before.
    """
    history = read_run_history(folder)
    if not 0 <= step <= history.steps_made:
        raise UsageError(
            f"step {step}: run {folder.name} has made steps up to {history.steps_made}"
        )
    if live_holder(folder, RealClock()) is not None:
        return []
    recorded = history.ledger.checkpoint_health
    sound = {checkpoint.step for checkpoint in usable(folder.checkpoints, recorded)}
    states = sorted(sound | _kept_elsewhere(folder, recorded)) or [0]
    if step < states[0]:
        raise UsageError(
            f"step {step}: run {folder.name} has no state of that step or before left",
            f"its checkpoints are of steps {', '.join(map(str, states))}",
        )
    return states


def _kept_elsewhere(folder: RunFolder, recorded: Mapping[int, CheckpointHealth]) -> set[int]:
    """Steps of the sound checkpoints that a remote tier has, as far as the journal knows."""
    if not (has_run_spec(folder) and read_run_spec(folder).settings().checkpoint.remote):
        return set()
    there: dict[tuple[str, str], int] = {}
    for record in read_journal(folder, steps=False):
        if not isinstance(record, Event):
            continue
        key = str(record.data.get("tier")), str(record.data.get("manifest"))
        if record.kind == EventKind.UPLOADED:
            there[key] = record.step
        elif record.kind == EventKind.REMOTE_REMOVED:
            there.pop(key, None)
    return {
        step
        for (_, manifest), step in there.items()
        if (known := recorded.get(step)) and known.is_sound and known.manifest == manifest
    }


def _refuse_change(
    folder: RunFolder, changed: Mapping[str, Any], typed: Mapping[str, str], step: int, force: bool
) -> None:
    history = read_run_history(folder)
    overrides = history.ledger.overrides_at(history.steps_made)
    before = with_overrides(read_run_spec(folder).settings(), overrides)
    changed_recipe(before, changed, typed, history.ledger, step, force=force)


def request_stop(folder: RunFolder, reason: str, wait_s: Seconds) -> str:
    """Ask a run to save and end; the answer in words."""
    if live_holder(folder, RealClock()) is None:
        return f"run {folder.name} is not being trained; nothing to stop"
    answer = _request(folder, "stop", {}, reason, wait_s)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if live_holder(folder, RealClock()) is None:
            step = answer.step if answer else "its last boundary"
            return f"stopped at step {step}; `longhaul train {folder.name}` goes on from there"
        time.sleep(_LOOK_EVERY_S)
    return "asked; the run is saving"


def request_note(folder: RunFolder, text: str, wait_s: Seconds) -> str:
    """Ask a run to write a note down; the answer in words. UsageError if the note is empty."""
    if not text.strip():
        raise UsageError("a note without a word says nothing", "write it in quotes")
    answer = _request(folder, "note", {"text": text}, "", wait_s)
    return f"noted at step {answer.step}" if answer else "asked; noted at the run's next start"


def _request(
    folder: RunFolder, kind: str, data: Mapping[str, Any], reason: str, wait_s: Seconds
) -> Decision | Event | None:
    refuse_if_moved(folder)  # nobody would ever answer here
    clock = RealClock()
    request = submit(folder, kind, data, who=user_name(), reason=reason, clock=clock)
    deadline = time.monotonic() + wait_s
    while (holder := live_holder(folder, clock)) is not None:
        answer = _answer(folder, request.id)
        if isinstance(answer, Event) and answer.kind == EventKind.REQUEST_REFUSED:
            raise UsageError(f"run {folder.name} refused: {answer.data['reason']}")
        if answer is not None or wait_s == 0:
            return answer
        if time.monotonic() > deadline:
            raise UsageError(
                f"run {folder.name} has not answered within {wait_s:g} s, "
                f"but process {holder.pid} on {holder.place.host} holds it",
                "the request stays and is granted at the next step boundary; "
                f"`longhaul log {folder.name}` shows it",
            )
        time.sleep(_LOOK_EVERY_S)
    return _answer(folder, request.id)


def _answer(folder: RunFolder, request: str) -> Decision | Event | None:
    for record in read_journal(folder, steps=False):
        if isinstance(record, Event | Decision) and record.data.get("request") == request:
            return record
    return None
