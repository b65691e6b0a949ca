"""A live step that is lent out comes back as it was."""

import pytest
import torch

from longhaul.checkpoint.capture import TrainingState, capture
from longhaul.config.load import with_overrides
from longhaul.core.records import StepRecord
from longhaul.train import borrowed_step as loan_file
from longhaul.train.effective import fit_optimizer
from longhaul.train.state import training_state
from longhaul.train.trainer import Trainer

STEADY = ("batch.stages=[]", "evaluation.interval_steps=0", "checkpoint.interval_steps=0")


def state_of(trainer: Trainer):
    parts = trainer._parts
    state = capture(training_state(parts.step, parts.progress))
    return TrainingState({name: t.clone() for name, t in state.tensors.items()}, state.facts)


def live(trainer: Trainer):
    """What the optimizer holds but for the rates, which each step is given."""
    return {k: v for k, v in trainer.live_settings().items() if not k.endswith(".lr")}


def losses(trainer: Trainer, last: int) -> list[float]:
    found = []
    for record in trainer.steps():
        if isinstance(record, StepRecord):
            found.append(record.loss)
            if record.step == last:
                break
    return found


@pytest.mark.parametrize("swapped", [False, True])
def test_training_goes_on_bit_by_bit_as_if_it_had_not_been_lent(make_trainer, swapped) -> None:
    plain, lent = (make_trainer(*STEADY, "model.dropout=0.3") for _ in range(2))
    assert losses(plain, 5) == losses(lent, 5)
    before, betas = state_of(lent), live(lent)
    borrowed_step = lent.borrow_step(1)
    settings = lent.settings.optim
    if swapped:  # a replay of steps that another optimizer made
        settings = with_overrides(lent.settings, {"optim.name": "sgdw"}).optim
        fit_optimizer(borrowed_step.step, settings)
    batch = borrowed_step.batches.read(lent._request(0, lent.settings.batch_at(0)))
    borrowed_step.step.apply_settings(settings, 0.5)
    borrowed_step.step(batch, 2, 0.5, read_gauges=True)
    torch.rand(3)
    lent.return_step(borrowed_step)
    after = state_of(lent)
    assert after.facts == before.facts
    assert live(lent) == betas
    assert all(torch.equal(after.tensors[name], t) for name, t in before.tensors.items())
    assert losses(plain, 12) == losses(lent, 12)


def test_a_step_is_lent_between_steps_only_and_where_its_copies_fit(
    make_trainer, monkeypatch
) -> None:
    trainer = make_trainer(*STEADY)
    trainer._step()
    with pytest.raises(ValueError, match="under way"):
        trainer.borrow_step(1)
    list(trainer.completed())
    size = sum(t.nbytes for t in state_of(trainer).tensors.values())
    monkeypatch.setattr(loan_file, "available_memory", lambda: 2 * size)
    trainer.return_step(trainer.borrow_step(2))
    with pytest.raises(MemoryError, match="for copies of the state"):
        trainer.borrow_step(3)


def test_its_time_is_booked_to_detection(make_trainer) -> None:
    trainer = make_trainer(*STEADY)
    clock, time_buckets = trainer._parts.clock, trainer._parts.time_buckets
    time_buckets.switch("redone")
    time_buckets.drain()
    borrowed_step = trainer.borrow_step(1)
    clock.advance(3.0)
    trainer.return_step(borrowed_step)
    clock.advance(1.0)
    assert time_buckets.drain() == {"detection": 3.0, "redone": 1.0}
