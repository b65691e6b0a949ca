"""Choosing and loading the checkpoint a run goes on from."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from longhaul.checkpoint.capture import PartsFor
from longhaul.checkpoint.loader import read_facts, restore
from longhaul.core.errors import NeedsPerson
from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.logbook.folder import created_of
from longhaul.logbook.run_log import RunLog
from longhaul.parallel.control import Control, patiently, received
from longhaul.store.catalogue import (
    Checkpoint,
    catalogue,
    health_of,
    newest_usable,
    set_aside,
    sweep,
    unknown,
)
from longhaul.store.manifest import RefusedCheckpoint
from longhaul.store.retention import may_begin_anew
from longhaul.store.tiers import Tiers


def set_unknown_aside(run_log: RunLog, say: Say) -> None:
    """Set checkpoints aside that the run's journal does not know; OSError if that is refused."""
    recorded = run_log.ledger.checkpoint_health.values()
    manifests = {known.manifest for known in recorded if known.manifest}
    there = catalogue(run_log.folder.checkpoints)
    if found := unknown(there, manifests, run_log.history.begun, created_of(run_log.folder)):
        steps = [checkpoint.step for checkpoint in found]
        aside = set_aside(found)
        text = f"{_listed(steps)}: not known to this run's journal, moved to {aside}"
        run_log.emit(EventKind.CHECKPOINTS_SET_ASIDE, 0, steps=steps, text=text)
        say(f"WARNING: {text}")


def restore_newest(
    run_log: RunLog,
    parts_for: PartsFor,
    say: Say,
    control: Control | None = None,
    tiers: Tiers | None = None,
) -> int | None:
    """Fill the parts that suit it from the newest usable checkpoint.

    Of several ranks this is the first; the others follow by `restore_as_ordered`. With tiers the
    newest of all is taken, fetched from where it is.

    Returns:
        Its step; None if the run has no checkpoint yet, or was told to go back behind its first.

    Raises:
        NeedsPerson: there are checkpoints, and none of them can be used.
        StoreNeeded: nothing is here, and another tier does not answer.
    """
    folder = run_log.folder.checkpoints
    for tidied in sweep(folder, run_log.lease.attempt):
        say(f"checkpoints: {tidied}")
    there = catalogue(folder)
    recorded = run_log.ledger.checkpoint_health
    refused: list[tuple[Checkpoint, RefusedCheckpoint]] = []
    candidates = newest_usable(there, recorded) if tiers is None else tiers.candidates()
    while checkpoint := patiently(partial(next, candidates, None), control):
        try:
            facts = read_facts(checkpoint.path).facts
            if control is not None:
                control.share((str(checkpoint.path), facts))
            loaded = restore(checkpoint.path, parts_for(facts), control)
        except RefusedCheckpoint as refusal:
            say(f"WARNING: refused {refusal.message}; trying the one before it")
            refused.append((checkpoint, refusal))
        else:
            _record(run_log, refused, checkpoint)
            if tiers is not None:
                tiers.arrived(loaded.step)
            return loaded.step
    if control is not None:
        control.share(None)
    if tiers is not None:
        tiers.refuse_to_begin_anew(nothing_here=not there)
    if not there:
        if saved := [step for step, known in recorded.items() if known.health != "poisoned"]:
            say(
                f"WARNING: step {max(saved)} was saved, and no checkpoint is left in {folder}: "
                "from the beginning"
            )
        return None
    poisoned = [c.step for c in there if health_of(c, recorded) == "poisoned"]
    back = [r.to_step for r in run_log.ledger.recoveries if r.to_step is not None]
    behind_all = may_begin_anew(recorded, back[-1] if back else None)
    if behind_all and not refused and len(poisoned) == len(there):
        say(
            f"WARNING: the run went back to step {back[-1]} and ended before it could save; "
            f"checkpoints {_listed(poisoned)} lie beyond it and are poisoned: from the beginning"
        )
        return None
    raise NeedsPerson(
        f"none of the {len(there)} checkpoints in {folder} can be used: {_why(poisoned, refused)}",
        "look at them; to train from the beginning, move them away or use --new",
    )


def _why(poisoned: Sequence[int], refused: Sequence[tuple[Checkpoint, RefusedCheckpoint]]) -> str:
    said = [refusal.message for _, refusal in refused]
    if poisoned:
        said.append(
            f"{_listed(poisoned)} poisoned, because the run went back behind them or they did not "
            "read back (`longhaul log RUN --events` tells)"
        )
    return "; ".join(said)


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(f"step-{step}" for step in steps)


def restore_as_ordered(parts_for: PartsFor, control: Control) -> int | None:
    """Fill the parts from the checkpoint that rank 0 finds; its step, None if it has found none."""
    shared: tuple[str, dict[str, Any]] | None
    while (shared := received(control)) is not None:
        path, facts = shared
        with suppress(RefusedCheckpoint):  # by any rank: rank 0 tells of it, and tries another
            return restore(Path(path), parts_for(facts), control).step
    return None


def _record(
    run_log: RunLog, refused: Sequence[tuple[Checkpoint, RefusedCheckpoint]], loaded: Checkpoint
) -> None:
    """Poison what was refused, now that another one loaded: the medium itself does answer."""
    # Left unrecorded, a torn checkpoint would keep its place as the newest verified one, and
    # retention could remove a sound one for it.
    for checkpoint, refusal in refused:
        manifest = checkpoint.manifest_sha256
        # Where a copy from elsewhere has taken its place, the checkpoint itself is sound; one whose
        # manifest could not be read here has no other name than its step.
        if checkpoint.step != loaded.step or manifest not in ("", loaded.manifest_sha256):
            run_log.decide_health(checkpoint.step, "poisoned", manifest, refusal.message)
