"""What a restart changed, as a decision: the ledger knows it as it knows what was asked for live.

Enters: the last segment of a run, settings and fingerprint of now. Leaves: a decision, if anything
that numbers come from is not as it was. Never knows: whether it does any harm.
"""

from collections.abc import Mapping
from typing import Any

from longhaul.config.load import recipe_from_values
from longhaul.config.recipe import Recipe
from longhaul.core.machine import differences
from longhaul.logbook.lease import user_name
from longhaul.logbook.ledger import LedgerState
from longhaul.logbook.run_log import RunLog
from longhaul.logbook.run_spec import changed_settings
from longhaul.logbook.segments import SegmentOpening

NUMBERS_COME_FROM = (
    "software.longhaul", "software.python", "software.git", "software.packages.torch",
    "software.packages.numpy", "machine.cpu", "torch.",
)  # fmt: skip
"""Parts of a fingerprint that other bits may come of."""
_PLACES = ("machine.host", "ranks.")


def decide_restart(
    run_log: RunLog,
    last: SegmentOpening | None,
    effective: Recipe,
    prints: Mapping[str, Any],
    step: int,
) -> LedgerState:
    """Write down what is not as it was before; nothing where it is the same, or the run is new.

    Args:
        run_log: it is written there.
        last: the last segment; None in a new run.
        effective: settings in force from here on.
        prints: fingerprint of this attempt.
        step: updates made where the run goes on.

    Returns:
        The ledger after it.

    Raises:
        LedgerError: it could not be written.
    """
    ledger = run_log.ledger.state
    if last is None:
        return ledger
    differ = changed_settings(recipe_from_values(last.settings), effective)
    # What was decided live is in the ledger already, with who decided it.
    settings = {path: pair for path, pair in differ.items() if path not in ledger.overrides}
    here = differences(last.fingerprint, prints) if last.fingerprint else {}
    origins = (*NUMBERS_COME_FROM, *_PLACES)
    surroundings = {path: pair for path, pair in here.items() if path.startswith(origins)}
    # Settings decided at later steps, which the run has lost, hold from here on.
    earlier = any(change.step > step and not change.scheduled for change in ledger.changes)
    if settings or surroundings or earlier:
        data = {"settings": settings, "surroundings": surroundings}
        run_log.decide("restart", step, data, who=user_name(), reason="")
    return run_log.ledger.state
