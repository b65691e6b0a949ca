"""Which health each checkpoint has now (DESIGN rule 7).

Healths are words in the ledger, which owns them and lets them only move forward; a checkpoint
is a folder. This file brings the two together.

Enters: the catalogue, and what the ledger recorded. Leaves: a health for each checkpoint.
Never knows: how healths come to be recorded.
"""

from collections.abc import Mapping, Sequence

from longhaul.logbook.ledger import Health
from longhaul.store.catalogue import Checkpoint


def health_now(
    checkpoints: Sequence[Checkpoint], recorded: Mapping[int, tuple[Health, str]]
) -> dict[int, Health]:
    """Step → health of the checkpoints that are there.

    A record counts only for the very checkpoint it was made for: one that a later attempt wrote
    anew at the same step starts over as committed, and so does one whose record was lost.

    Args:
        checkpoints: the catalogue.
        recorded: step → (health, manifest hash) as folded from the ledger.
    """
    current: dict[int, Health] = {}
    for checkpoint in checkpoints:
        health, manifest_sha256 = recorded.get(checkpoint.step, ("committed", ""))
        # Only a readable manifest can prove that this is another checkpoint than the one recorded.
        another = checkpoint.manifest_sha256 not in ("", manifest_sha256)
        current[checkpoint.step] = "committed" if another or health == "written" else health
    return current
