from pathlib import Path

from longhaul.logbook.ledger import CheckpointHealth
from longhaul.store.catalogue import Checkpoint, health_now


def entry(step: int, sha256: str) -> Checkpoint:
    return Checkpoint(
        step=step, path=Path(f"step-{step}"), manifest_sha256=sha256, time=0.0, size_bytes=0
    )


def test_a_record_counts_only_for_the_checkpoint_it_was_made_for() -> None:
    now = health_now(
        [
            entry(1, "aa"),
            entry(2, "old"),
            entry(3, "cc"),
            entry(4, "dd"),
            entry(5, ""),
            entry(6, "new"),
        ],
        {
            1: CheckpointHealth("good", "aa"),
            2: CheckpointHealth("verified", "newer", {"old": "poisoned"}),
            4: CheckpointHealth("written", "dd"),
            5: CheckpointHealth("poisoned", "ee"),
            6: CheckpointHealth("poisoned", "old"),
            9: CheckpointHealth("good", "gone"),
        },
    )
    assert now == {
        1: "good",
        2: "poisoned",
        3: "committed",
        4: "committed",
        5: "poisoned",
        6: "committed",
    }
