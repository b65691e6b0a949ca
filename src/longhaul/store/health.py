"""Which health each checkpoint has now (DESIGN rule 7).

Healths are words in the ledger, which owns them and lets them only move forward; a checkpoint
is a folder. This file brings the two together.

Enters: the catalogue, and what the ledger recorded. Leaves: a health for each checkpoint.
Never knows: how healths come to be recorded.
"""

from collections.abc import Mapping, Sequence

from longhaul.logbook.ledger import CheckpointHealth, Health
from longhaul.store.catalogue import Checkpoint

_UNRECORDED = CheckpointHealth("committed", "")


def health_now(
    checkpoints: Sequence[Checkpoint], recorded: Mapping[int, CheckpointHealth]
) -> dict[int, Health]:
    """Step → health of the checkpoints that are there.

    A record counts only for the very checkpoint it was made for: one that a later attempt wrote
    anew at the same step starts over as committed, and so does one whose record was lost.

    Args:
        checkpoints: the catalogue.
        recorded: by step, as folded from the ledger.
    """
    current: dict[int, Health] = {}
    for checkpoint in checkpoints:
        known = recorded.get(checkpoint.step, _UNRECORDED)
        # Only a readable manifest can prove that this is another checkpoint than the one recorded.
        another = checkpoint.manifest_sha256 not in ("", known.manifest)
        early = another or known.health == "written"
        current[checkpoint.step] = "committed" if early else known.health
    return current
