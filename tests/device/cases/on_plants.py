"""That the cases here find what they are for: a step with something planted in it does not pass."""

from threading import Thread

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError as Mixed

from fakes import FakeClock
from longhaul.config.load import load_recipe
from longhaul.config.size import shrunken
from longhaul.core.clocks import TimeBuckets
from longhaul.model.device import Mark
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build
from longhaul.optim.update_rules import build_optimizer
from longhaul.train.drain import Drain
from longhaul.train.equality import random_batches
from longhaul.train.evaluation import evaluate
from longhaul.train.step import TrainingStep

RECIPE = load_recipe(
    "drill", [*shrunken(load_recipe("drill").recipe), "model.layers=1", "batch.sequences=2"]
).recipe
WAITS = "and the host waits for that"


def step_of(fake) -> TrainingStep:
    with fake.building():
        model = build(RECIPE.model, 512, 1, fake.device, end_of_text=0)
        optimizer = build_optimizer(model, RECIPE.optim)
        return TrainingStep(model, optimizer, fake.device, RECIPE.precision, 1)


def made(fake, step: TrainingStep | None = None) -> Tensor:
    batch = next(random_batches(RECIPE, 512, 1, None))
    return (step or step_of(fake))(batch, 2, 1e-3, True)


def plant(monkeypatch, done) -> None:
    """Have the model do something to its logits."""
    logits = GPT._logits

    def planted(model: GPT, x_BTD: Tensor) -> Tensor:
        found_BTV = logits(model, x_BTD)
        done(found_BTV)
        return found_BTV

    monkeypatch.setattr(GPT, "_logits", planted)


def test_without_a_plant_the_step_passes(fake) -> None:
    assert made(fake).device == fake.device


@pytest.mark.parametrize(
    ("done", "says"),
    [
        (lambda x: x.sum().item(), "reads a number"),
        (lambda x: float(x.amax()), "reads a number"),
        (lambda x: bool(torch.isnan(x).any()), "reads a number"),
        (lambda x: x.detach()[0, 0, :2].tolist(), "reads a number"),
        (lambda x: torch.equal(x, x), "compares tensors"),
        (lambda x: torch.allclose(x, x), "compares tensors"),
        (lambda x: torch._foreach_add_([x.detach().clone()], x.sum().detach()), "reads a number"),
        (lambda x: x.cpu(), "to the host"),
        (lambda x: x.to("cpu", non_blocking=True), "to the host"),
        (lambda x: torch.empty(x.shape).copy_(x.detach()), "to the host"),
        (lambda x: torch.tensor([1.0, 2.0], device=x.device), "to the device"),
        (lambda x: torch.ones(3).to(x.device), "to the device"),
        (lambda x: torch.ones(3).to(x.device, non_blocking=True), "to the device"),
    ],
)  # fmt: skip
def test_a_planted_wait_is_found(fake, monkeypatch, done, says: str) -> None:
    plant(monkeypatch, done)
    with pytest.raises(AssertionError, match=f"model.gpt:GPT.* .*{says}.*{WAITS}"):
        made(fake)


@pytest.mark.parametrize("done", [Tensor.nonzero, lambda x: x[x > 0], torch.unique])
def test_a_planted_shape_that_numbers_decide_is_found(fake, monkeypatch, done) -> None:
    plant(monkeypatch, done)
    with pytest.raises(DynamicOutputShapeException):
        made(fake)


@pytest.mark.parametrize(
    "done",
    [
        lambda x: x + torch.ones(x.shape),
        lambda x: torch.where(torch.ones(x.shape, dtype=torch.bool), x, 0.0),
        lambda x: x @ torch.ones(x.size(-1), 2),
        lambda x: x + torch.ones_like(x, device="fakegpu:0"),
    ],
)
def test_a_planted_tensor_of_the_host_or_of_another_device_is_found(
    fake, monkeypatch, done
) -> None:
    plant(monkeypatch, done)
    with pytest.raises(Mixed):
        made(fake)


def test_a_wait_in_the_backward_pass_is_found(fake) -> None:
    step = step_of(fake)

    def look(gradient: Tensor) -> None:
        gradient.sum().item()

    next(step.model.parameters()).register_hook(look)
    with pytest.raises(AssertionError, match=f"train.step:TrainingStep._backward .*{WAITS}"):
        made(fake, step)


def test_a_wait_in_the_update_is_found(fake, monkeypatch) -> None:
    step = step_of(fake)
    judge = step.optimizer.judge

    def judged(*given):
        gate = judge(*given)
        assert not gate.masked
        return gate

    monkeypatch.setattr(step.optimizer, "judge", judged)
    with pytest.raises(AssertionError, match=f"train.step:TrainingStep.__call__ .*{WAITS}"):
        made(fake, step)


def test_an_allowance_holds_for_its_function_alone(fake, monkeypatch) -> None:
    """Evaluation may read its sum once for a source, and the model nothing meanwhile."""
    stream = type("Stream", (), {"num_tokens": 0, "num_bytes": 0})()
    source = type("Source", (), {"name": "text", "held_out": stream})()
    dataset = type("Dataset", (), {"sources": [source]})()
    batch = next(random_batches(RECIPE, 512, 1, None))
    read = [(batch.tokens_BT, batch.targets_BT, batch.num_targets)]
    monkeypatch.setattr("longhaul.train.evaluation.evaluation_batches", lambda *given: iter(read))
    step = step_of(fake)
    fake.allowed = ("train.evaluation:_Passes.split_loss",)
    given = (step.model, dataset, fake.device, RECIPE.precision, 64, 2, None)
    assert evaluate(*given).tokens == batch.num_targets
    plant(monkeypatch, lambda x: x.sum().item())
    with pytest.raises(AssertionError, match=WAITS):
        evaluate(*given)


def test_a_thread_that_names_no_device_is_found(fake) -> None:
    def record() -> None:
        event = fake.module.Event()
        event.record()
        event.synchronize()

    thread = Thread(target=record)
    thread.start()
    thread.join()
    assert fake.others_asked() == [("record", 0), ("wait", 0)]
    fake.module.asked.clear()


def test_figures_come_without_a_wait(fake) -> None:
    drain = Drain(fake.device, TimeBuckets(FakeClock()))
    drain.push(3, made(fake))
    assert [step.tag for step in drain.ready()] == [3]
    assert Mark(fake.device).record().query()
