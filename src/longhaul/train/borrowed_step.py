"""A borrowed step: others are made with the live one, and training goes on as if none had been."""

from dataclasses import dataclass

import torch

from longhaul.checkpoint.capture import TrainingState, capture, local_of, put_back
from longhaul.core.clocks import Bucket
from longhaul.core.machine import available_memory
from longhaul.core.units import short_bytes
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset
from longhaul.model.device import generator_states, put_back_generators
from longhaul.train.effective import parts_for
from longhaul.train.parts import Parts
from longhaul.train.state import training_state
from longhaul.train.step import TrainingStep


@dataclass(frozen=True)
class BorrowedStep:
    """A step that is lent, and a copy of its state; its borrower counts with its own `Progress`."""

    step: TrainingStep
    batches: BatchReader
    dataset: Dataset
    """Identity of the text that they read."""
    state: TrainingState
    generators: list[torch.Tensor]
    """States of the host's, and of the device's own."""
    bucket: Bucket


def borrow_step(parts: Parts, copies: int) -> BorrowedStep:
    """Copy the state of a trainer at a step boundary; nothing changes but what time is booked to. A
    `MemoryError` if the host has no room for so many `copies` of it, this one among them.
    """
    step = parts.step
    state = capture(training_state(step, parts.progress))
    local = {name: local_of(tensor) for name, tensor in state.tensors.items()}
    wanted = copies * sum(tensor.nbytes for tensor in local.values())
    if wanted > available_memory():
        raise MemoryError(f"the host has no {short_bytes(wanted)} for copies of the state")
    bucket = parts.time_buckets.switch("detection")
    on_host = {name: tensor.cpu().clone() for name, tensor in local.items()}
    kept, dataset = TrainingState(on_host, state.facts), parts.dataset
    generators = generator_states(step.device)
    return BorrowedStep(step, parts.batches, dataset, kept, generators, bucket)


def return_step(borrowed_step: BorrowedStep, parts: Parts) -> None:
    """Put every bit of the training state back."""
    progress = parts.progress
    settings, reached = progress.settings, progress.settings_of_checkpoint
    state = borrowed_step.state
    put_back(parts_for(borrowed_step.step, progress, state.facts), state.tensors, state.facts)
    progress.settings, progress.settings_of_checkpoint = settings, reached
    borrowed_step.step.optimizer.clear_gradients()
    borrowed_step.step.model_gauges.discard()
    put_back_generators(borrowed_step.generators, borrowed_step.step.device)
    parts.time_buckets.switch(borrowed_step.bucket)
