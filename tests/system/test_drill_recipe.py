"""`longhaul drill RECIPE` with real processes: what is survived, and what is left behind."""

from pathlib import Path

import pytest

from longhaul.run.drill.plan import Typed, drill_recipe
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "batch.stages=[]", "batch.sequences=4", "batch.micro_sequences=2", "model.context=32",
    "model.width=32", "model.layers=1", "evaluation.tokens=512", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=5", "checkpoint.snapshot_interval_steps=0",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_survives_a_dead_rank_and_a_wrong_byte_to_the_byte(tmp_path: Path) -> None:
    said: list[str] = []
    faults = ("kill@rank1:step8", "bitflip-file@rank0:step17", "exception@rank0:step17")
    typed = Typed("drill", faults, sets=TINY, steps=24)
    (verdict,) = drill_recipe(typed, tmp_path, said.append)
    assert verdict.passed, said
    assert verdict.found is not None
    assert verdict.found.none
    killed, flipped, raised = verdict.run.incidents
    assert (killed.by, raised.by, flipped.by) == ("supervisor", "supervisor", "pilot")
    assert 1 <= killed.steps_lost <= 7
    # Checkpoint 15 is read, refused for its byte, and the one before it is taken.
    assert raised.steps_lost >= 6
    assert "SHA-256" in flipped.story
    assert verdict.run.leftovers == ()
    assert said[-1].startswith("left behind: no process")


@pytest.mark.slow
def test_a_wrong_weight_is_noticed_undone_and_leaves_no_byte(tmp_path: Path) -> None:
    said: list[str] = []
    sets = (*TINY, "parallel.replicate=2", "monitor.hash_every=5", "monitor.witness_every=0")
    typed = Typed("drill", ("bitflip-weight@rank1:step8",), sets=sets, steps=20)
    (verdict,) = drill_recipe(typed, tmp_path, said.append)
    assert verdict.passed, said
    assert verdict.exact, "it went back to before it, so the end is the same to the byte"
    (flipped,) = verdict.run.incidents
    assert (flipped.by, flipped.named, flipped.undone) == ("pilot", (0, 1), True)
    assert "step 10: the weights of ranks 0, 1 differ" in flipped.story
    assert flipped.story.endswith("nobody could be named; went on from step 5")
