import pytest
import torch

import longhaul.optim.optimizer as rules
from longhaul.config.optim import OptimSection
from longhaul.config.recipe import change_of
from longhaul.optim.groups import weight_decay
from longhaul.optim.update_rules import build_optimizer


@pytest.fixture(params=["fused kernel", "guarded loop"], autouse=True)
def path(request, monkeypatch):
    if request.param == "guarded loop":
        monkeypatch.setattr(rules, "FUSED_DEVICES", ())


def sgdw(model, **changes):
    settings = OptimSection(**{"lr": 0.1, "weight_decay": 0.3, "clip": 0.0, **changes}, name="sgdw")
    return build_optimizer(model, settings), settings


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_twelve_steps_equal_torch_s_sgd_beside_a_separate_decay(
    model, fill_gradients, update, momentum, nesterov
):
    optimizer, settings = sgdw(model, sgdw={"momentum": momentum, "nesterov": nesterov})
    plain = torch.optim.SGD(
        [
            {"params": [torch.nn.Parameter(p.detach().clone().double()) for p in group.parameters]}
            for group in optimizer.groups
        ],
        lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.0,
    )  # fmt: skip
    pairs = list(zip(optimizer.groups, plain.param_groups, strict=True))
    for t in range(12):
        lr = 0.1 * (1 - t / 20)
        fill_gradients(model, seed=t, scale=0.1)
        for group, theirs in pairs:
            theirs["lr"] = lr
            for ours, other in zip(group.parameters, theirs["params"], strict=True):
                other.grad = ours.grad.double()
                other.data.mul_(1 - lr * weight_decay(group.role, settings))
        plain.step()
        optimizer.set_learning_rate(lr)
        update(optimizer)
    for group, theirs in pairs:
        for ours, other in zip(group.parameters, theirs["params"], strict=True):
            torch.testing.assert_close(ours.double(), other, atol=3e-6, rtol=1e-5)


def test_without_momentum_there_is_no_state_at_all(model, fill_gradients, update):
    optimizer, _ = sgdw(model, sgdw={"momentum": 0.0})
    fill_gradients(model, seed=1)
    update(optimizer)
    assert optimizer.tensors() == {}
    assert len(sgdw(model)[0].tensors()) == len(list(model.parameters()))


def test_decay_never_enters_the_momentum(model, update):
    optimizer, _ = sgdw(model)
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        update(optimizer)
    assert not any(tensor.any() for tensor in optimizer.tensors().values())


def test_what_decides_the_layout_of_a_checkpoint_cannot_change_in_a_run():
    assert change_of("optim.sgdw.momentum") == "never"
    assert change_of("optim.name") == "live", "the new rule brings a layout of its own"
    assert change_of("optim.muon.momentum") == "live"
