"""A switch that claims to be only about speed, memory or safety leaves training unchanged: 200
steps of a recipe with a curriculum, with the switch and without, and no loss differs by 1e-3.
"""

import re
from pathlib import Path

import pytest

from longhaul.core.records import StepRecord
from small_runs import HALF_A_BATCH

STEPS = 200
BARE = (
    HALF_A_BATCH, f"train.steps={STEPS}", "model.dropout=0", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=0", "monitor.gauge_interval_steps=0",
)  # fmt: skip
# A processor that is fast in bfloat16 takes it for Muon's products, where another order of the same
# sums is another rounding, of 6e-3 after 200 steps.
MUON = ('optim.name="muon"', "optim.lr=0.01", 'optim.muon.newton_schulz="float32"')
SWITCHES = {
    "compiled": ("machine.compile=true",),
    "whole micro-batches": ("batch.micro_sequences=8",),
    "selective checkpointing": ('machine.activation_checkpointing="selective"',),
    "full checkpointing": ('machine.activation_checkpointing="full"',),
    "optimizer state on the host": ("optim.offload=true",),
    "two threads": ("machine.threads=2",),
    "gauges in every step": ("monitor.gauge_interval_steps=1",),
    "compiled, and uncompiled where gauges are read": (
        "machine.compile=true", "monitor.gauge_interval_steps=3",
    ),
    "saves, snapshots, evaluations": (
        "checkpoint.interval_steps=20", "checkpoint.snapshot_interval_steps=5",
        "evaluation.interval_steps=20",
    ),
    # 256 tokens of 8,192 logits are two chunks, 128 are none.
    "a loss that never has all logits": ("batch.micro_sequences=8",),
    "layers that stay gathered": ("parallel.reshard_after_forward=false",),
    "layers that are gathered when they are needed": ("parallel.prefetch=0",),
}  # fmt: skip
SHARDED = ("machine.processes=2", "parallel.shard=2")
IN_BOTH = {
    "a loss that never has all logits": ("model.vocab_multiple=8192", "batch.stages=[]"),
    "layers that stay gathered": SHARDED,
    "layers that are gathered when they are needed": SHARDED,
}
"""Switch → what else the run has, with it and without."""


def losses(room, *settings: str) -> list[float]:
    options = [part for setting in (*BARE, *settings) for part in ("--set", setting)]
    code, output = room.run("train", "drill", "--new", *options)
    assert code == 0, output
    run = Path(re.findall(r"^run: (\S+)$", output, re.MULTILINE)[-1])
    made = [r for r in room.records(run.name) if isinstance(r, StepRecord)]
    assert [record.step for record in made] == list(range(1, STEPS + 1))
    return [float(record.loss) for record in made]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [(), MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_that_is_only_about_speed_leaves_training_unchanged(room, switch, optimizer):
    beside = (*optimizer, *IN_BOTH.get(switch, ()))
    without = losses(room, *beside)
    with_it = losses(room, *beside, *SWITCHES[switch])
    assert without[0] - without[-1] > 1, "nothing was learned, so nothing is compared"
    assert with_it == pytest.approx(without, rel=0, abs=1e-3)


@pytest.mark.slow
def test_a_switch_about_more_than_speed_shows(room):
    plain, tighter = losses(room), losses(room, "optim.lr=2.1e-3")
    assert tighter != pytest.approx(plain, rel=0, abs=1e-3)
