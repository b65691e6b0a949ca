"""What is dropped: something else in every micro-batch, the same in the same one."""

import pytest
import torch

from longhaul.core.faults import HANDLERS, Point
from longhaul.data.batches import Batch


def losses(trainer, draw: int, micro_sequences: int = 2) -> list[float]:
    """Of each micro-batch of a step on four equal sequences, which differ by what is dropped."""
    step = trainer.training_step
    step.model.train()
    row = torch.arange(17) % step.model.vocab_size
    tokens_BT = row[:-1].repeat(4, 1)
    batch = Batch(tokens_BT, row[1:].repeat(4, 1), tokens_BT.numel(), draw, draw + 4)
    found = []
    with pytest.MonkeyPatch.context() as patch, step.aside():
        patch.setitem(HANDLERS, Point.LOSS, [lambda loss, **_: found.append(loss.item())])
        step.compute(batch, micro_sequences)
    return found


def test_every_micro_batch_drops_something_else(make_trainer) -> None:
    trainer = make_trainer("model.dropout=0.5")
    first, second = losses(trainer, draw=0)
    assert first != second
    other, _ = losses(trainer, draw=4)
    assert other not in (first, second), "nor does another step repeat it"
    assert losses(trainer, draw=0) == [first, second], "but the same step made again does"
    plain = losses(make_trainer("model.dropout=0.0"), draw=0)
    assert plain[0] == plain[1], "nothing else tells the two apart"
