"""What every stage of one attempt needs to know."""

from dataclasses import dataclass

from longhaul.config.recipe import Recipe
from longhaul.core.output import View
from longhaul.data.verification import Verification
from longhaul.logbook.run_log import RunLog
from longhaul.store.tiers import Tiers
from longhaul.supervise.ranks.progress import ProgressFile


@dataclass(frozen=True)
class Attempt:
    """What every stage of one attempt needs to know."""

    recipe: Recipe
    """As asked for; the ledger is put on top of it by the trainer."""
    run_log: RunLog
    view: View
    tiers: Tiers
    """Where else its checkpoints are."""
    progress: ProgressFile | None = None
    """Where this process says at which step it is; None: nobody watches."""
    verification: Verification | None = None
    """Of its prepared text, beside training; None: nobody compares it."""
