import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from longhaul.checkpoint.capture import capture
from longhaul.core.errors import NeedsPerson
from longhaul.core.faults import HANDLERS, Point
from longhaul.train import memory
from longhaul.train.memory import LiveBytes, fitting_micro_sequences
from longhaul.train.micro_batch import Budget
from longhaul.train.state import training_state
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

MakeTrainer = Callable[..., Trainer]


def state(trainer: Trainer) -> dict[str, bytes]:
    """Everything that a later step could read."""
    step = trainer.training_step
    captured = capture(training_state(step, trainer._parts.progress))
    others = {f"buffer.{name}": tensor for name, tensor in step.model.named_buffers()}
    tap = step.model_gauges.tap
    others["gauges"] = tap._folded
    tensors = {**captured.tensors, **others}
    found = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    gradients = [p.grad is None for p in step.model.parameters()]
    flags = (captured.facts, gradients, step.model.training, step.passes.forms._seen, tap.is_open)
    return found | {"rest": repr((flags, tap._openings, tap._losses)).encode()}


def losses(trainer: Trainer) -> list[tuple[int, float]]:
    return [(r.step, r.loss) for r in trainer.steps() if hasattr(r, "loss")]


@pytest.mark.parametrize("training", [True, False])
def test_a_rehearsal_leaves_every_byte_as_it_was(make_trainer: MakeTrainer, training: bool) -> None:
    trainer = make_trainer("model.dropout=0.3")
    trainer.training_step.model.train(training)
    before = state(trainer)
    fitting_micro_sequences(trainer.training_step, trainer.settings)
    assert state(trainer) == before


def test_a_rehearsal_that_fails_leaves_every_byte_as_it_was(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer("model.dropout=0.3")
    before, step = state(trainer), trainer.training_step

    def failing(step: TrainingStep) -> None:
        raise torch.OutOfMemoryError("enough")

    monkeypatch.setitem(HANDLERS, Point.BACKWARD, [failing])
    with pytest.raises(NeedsPerson, match="more than the device has"):
        fitting_micro_sequences(step, trainer.settings)
    assert state(trainer) == before


def test_a_rehearsed_run_makes_the_steps_of_one_that_was_not(make_trainer: MakeTrainer) -> None:
    plain, rehearsed = make_trainer(), make_trainer(folder="other")
    fitting_micro_sequences(rehearsed.training_step, rehearsed.settings)
    assert losses(plain) == losses(rehearsed)


def test_a_rehearsal_predicts_as_many_tokens_ahead_as_any_stage(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = "[{from_step=0, weights=[0.5]}, {from_step=9, weights=[0.5, 0.2]}]"
    trainer, seen = make_trainer(f"model.ahead_stages={stages}"), []
    step = trainer.training_step
    rehearse = step.rehearse
    monkeypatch.setattr(
        step, "rehearse", lambda *given: (seen.append(step.model.ahead), rehearse(*given))[1]
    )
    fitting_micro_sequences(step, trainer.settings)
    assert set(seen) == {(0.5, 0.2)}


def test_less_memory_gives_smaller_micro_batches_and_too_little_is_refused(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    step, recipe = trainer.training_step, trainer.settings
    needed = {n: memory.peak_of(lambda n=n: step.rehearse(n, 32), step.device) for n in (1, 3)}  # type: ignore[misc]
    for available, expected in ((1 << 40, 8), (4 * needed[3], 2), (4 * needed[1], 1)):
        monkeypatch.setattr(memory, "available_memory", lambda free=available: free)
        assert fitting_micro_sequences(step, recipe).sequences == expected
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * needed[1] - 4)
    with pytest.raises(NeedsPerson, match="a quarter of the"):
        fitting_micro_sequences(step, recipe)


def test_a_micro_batch_leaves_room_for_the_evaluation_beside_it(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer("evaluation.sequences=8")
    step, recipe = trainer.training_step, trainer.settings
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * 10**9)
    assert fitting_micro_sequences(step, recipe).sequences == 8

    def takes_much(sequences: int, length: int) -> None:
        torch.empty(sequences * 3 * 10**8, dtype=torch.uint8)

    monkeypatch.setattr(step, "rehearse_evaluation", takes_much)
    assert fitting_micro_sequences(step, recipe).sequences == 2


def test_memory_grows_in_a_straight_line_with_the_micro_batch(make_trainer: MakeTrainer) -> None:
    step = make_trainer().training_step
    taken = [memory.peak_of(lambda n=n: step.rehearse(n, 32), step.device) for n in (1, 2, 8)]  # type: ignore[misc]
    assert taken[2] == pytest.approx(taken[0] + 7 * (taken[1] - taken[0]), rel=0.05)


def test_the_free_memory_of_a_gpu_counts_what_the_allocator_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: dict[str, Any] = {
        "mem_get_info": (1000, 9000), "memory_reserved": 500, "memory_allocated": 100,
    }  # fmt: skip
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    budget = memory._budget(torch.device("cuda"))
    assert budget.limit == 1260
    assert budget.tried_out


def test_the_peak_is_what_lives_at_one_time() -> None:
    before = torch.ones(1000)
    gc.collect()
    with LiveBytes() as live:
        kept = before + 1
        for _ in range(3):
            temporary = kept * 2
            del temporary
        view = kept[:10].view(2, 5)
        kept.add_(1)
        before.mul_(2)
    assert (live.now, live.peak) == (4000, 8000)
    del kept, view
    assert live.now == 0


def test_tensors_kept_for_the_backward_pass_and_gradients_are_seen() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with LiveBytes() as live:
        kept = (weight * 2).exp()  # exp keeps its result; the product may go
        after_forward = live.now
        kept.sum().backward()
        assert weight.grad is not None
    assert 4000 <= after_forward <= 4008
    assert live.peak >= 12000


@pytest.mark.parametrize(("device", "compiles", "rehearsed"), [
    ("cuda", True, 2), ("cuda", False, 1), ("cpu", True, 1),
])  # fmt: skip
def test_what_compiling_takes_is_not_taken_for_the_passes_own(
    make_trainer: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    compiles: bool,
    rehearsed: int,
) -> None:
    """Of each size on a GPU, where the code is computed that is trained with."""
    trainer = make_trainer("batch.sequences=1", "batch.micro_sequences=1", "batch.stages=[]")
    step, done = trainer.training_step, []
    monkeypatch.setattr(step, "device", torch.device(device))
    monkeypatch.setattr(step.passes, "compilations", object() if compiles else None)
    monkeypatch.setattr(step, "rehearse", lambda *given: done.append(given))
    monkeypatch.setattr(step, "rehearse_evaluation", lambda *_: None)
    monkeypatch.setattr(memory, "peak_of", lambda body, _: (body(), 1)[1])
    monkeypatch.setattr(memory, "_budget", lambda _: Budget(10, "ten bytes", tried_out=True))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert fitting_micro_sequences(step, trainer.settings).sequences == 1
    # On a GPU what one takes is measured twice, as libraries come with the first pass.
    assert len(done) == rehearsed * (2 if device == "cuda" else 1)
