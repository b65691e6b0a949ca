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


def health_of(checkpoint: Checkpoint, recorded: Mapping[int, CheckpointHealth]) -> Health:
    """The health of one checkpoint, wherever it lies.

    A record counts only for the very checkpoint it was made for: one that a later attempt wrote
    anew at the same step starts over as committed, and so does one whose record was lost. One that
    was poisoned stays so, whatever was saved at its step since.

    Args:
        checkpoint: of a catalogue.
        recorded: by step, as folded from the ledger.
    """
    known = recorded.get(checkpoint.step, _UNRECORDED)
    word = known.of(checkpoint.manifest_sha256)
    return "committed" if word == "written" else word  # it has its manifest, so it is


def health_now(
    checkpoints: Sequence[Checkpoint], recorded: Mapping[int, CheckpointHealth]
) -> dict[int, Health]:
    """Step → health of the checkpoints that are there, one a step (`health_of`)."""
    return {checkpoint.step: health_of(checkpoint, recorded) for checkpoint in checkpoints}
