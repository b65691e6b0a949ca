import copy
import math

import pytest
import torch
from torch import nn

from longhaul.config.optim import OptimSection
from longhaul.core.errors import LonghaulError
from longhaul.model.weights import Linear
from longhaul.optim.muon import COEFFICIENTS
from longhaul.optim.update_rules import build_optimizer


class Bare(nn.Module):
    """Matrices of several shapes, one of them fused from unequal parts, and vectors."""

    def __init__(self, parts=(8, 4, 4)):
        super().__init__()
        self.first = Linear(8, 12, bias=True)
        self.second = Linear(8, 12, bias=False)
        self.tall = Linear(4, 16, bias=False)
        self.fused = Linear(8, 16, bias=False)
        self.fused.parts = parts
        self.gated = Linear(4, 24, bias=False)
        self.gated.parts = 2 if parts != 1 else 1
        for number, p in enumerate(self.parameters()):
            p.data.normal_(generator=torch.Generator().manual_seed(number))


def muon(model, **changes):
    given = {"newton_schulz": "float32", **changes.pop("muon", {})}
    settings = OptimSection(
        **{"lr": 0.02, "weight_decay": 0.3, "clip": 0.0, **changes}, name="muon", muon=given
    )
    return build_optimizer(model, settings), settings


def exact_direction(matrix, parts, scale):
    """Newton-Schulz in float64, part by part."""
    a, b, c = COEFFICIENTS
    made = []
    for part in matrix.split(parts):
        rows, columns = part.shape
        x = part / (part.norm() + 1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        factor = math.sqrt(max(1.0, rows / columns))
        if scale == "rms":
            factor = 0.2 * math.sqrt(max(rows, columns))
        made.append(factor * x)
    return torch.cat(made)


@pytest.mark.parametrize("scale", ["shape", "rms"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("warmup", [0, 6])
@pytest.mark.parametrize("separate", [True, False])
def test_twelve_steps_equal_a_float64_loop(
    fill_gradients, update, scale, nesterov, warmup, separate
):
    model = Bare()
    optimizer, _ = muon(
        model,
        clip=0.5,
        muon={
            "scale": scale, "nesterov": nesterov, "momentum_warmup_steps": warmup,
            "separate_parts": separate,
        },
    )  # fmt: skip
    matrices = {n: p for n, p in model.named_parameters() if p.ndim == 2}
    fused = {"fused.weight": [8, 4, 4], "gated.weight": [12, 12]}
    exact = {name: p.detach().double().clone() for name, p in matrices.items()}
    moments = {name: torch.zeros_like(p) for name, p in exact.items()}
    for t in range(12):
        lr = 0.02 * (1 - t / 20)
        fill_gradients(model, seed=t)
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
        momentum = 0.85 + 0.1 * min(1.0, t / warmup) if warmup else 0.95
        for name, p in exact.items():
            g = matrices[name].grad.double() / max(1.0, (norm + 1e-6) / 0.5)
            moments[name] = momentum * moments[name] + (1 - momentum) * g
            ahead = momentum * moments[name] + (1 - momentum) * g if nesterov else moments[name]
            parts = fused.get(name, [p.size(0)]) if separate else [p.size(0)]
            p *= 1 - lr * 0.3
            p -= lr * exact_direction(ahead, parts, scale)
        optimizer.set_learning_rate(lr)
        update(optimizer)
    for name, p in exact.items():
        torch.testing.assert_close(matrices[name].detach().double(), p, rtol=1e-4, atol=2e-5)


def test_it_is_torch_s_muon_but_for_the_rounding_of_bf16(fill_gradients, update):
    model = Bare(parts=1)
    optimizer, _ = muon(model, muon={"newton_schulz": "bf16"})
    matrices = [p for p in model.parameters() if p.ndim == 2]
    theirs = [nn.Parameter(p.detach().clone()) for p in matrices]
    before = [p.detach().clone() for p in theirs]
    torchs = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.3, momentum=0.95)
    for seed in range(12):
        fill_gradients(model, seed)
        for one, other in zip(theirs, matrices, strict=True):
            one.grad = other.grad.clone()
        torchs.step()
        update(optimizer)
    for ours, other, start in zip(matrices, theirs, before, strict=True):
        assert (ours - other).norm() < 0.03 * (other - start).norm()


def test_weights_that_are_no_matrices_are_adam_s(model, settings, fill_gradients, update):
    changed = settings.model_copy(update={"name": "muon"})
    reference = build_optimizer(adams := copy.deepcopy(model), settings)
    optimizer = build_optimizer(model, changed)
    for seed in range(3):
        for trained, one in ((model, optimizer), (adams, reference)):
            fill_gradients(trained, seed)
            update(one)
    matrices = {name for group in optimizer.groups[:1] for name in group.names}
    for (name, ours), theirs in zip(model.named_parameters(), adams.parameters(), strict=True):
        assert torch.equal(ours, theirs) is (name not in matrices), name


def test_parts_of_one_size_are_orthogonal_each_by_itself(fill_gradients, update):
    model = Bare(parts=2)
    optimizer, _ = muon(model, lr=1.0, weight_decay=0.0)
    before = model.fused.weight.detach().clone()
    fill_gradients(model, seed=1)
    model.fused.weight.grad[8:] *= 1e-3  # would hardly count beside the first half
    update(optimizer)
    for moved in (before - model.fused.weight.detach()).split(8):
        assert torch.linalg.matrix_norm(moved, 2) == pytest.approx(1.0, abs=0.3)


def test_parts_that_do_not_add_up_are_named():
    with pytest.raises(LonghaulError, match=r"fused\.weight has 16 rows"):
        muon(Bare(parts=3))


def test_a_masked_step_does_not_advance_the_warm_up(fill_gradients, update):
    model = Bare()
    optimizer, _ = muon(model, muon={"momentum_warmup_steps": 10})
    for scale in (1.0, math.nan, 1.0):
        fill_gradients(model, seed=1, scale=scale)
        update(optimizer)
    assert optimizer.tensors()["matrix.step"] == 2


def test_state_is_momentum_alone_by_the_weight_s_name(model, settings):
    optimizer = build_optimizer(model, settings.model_copy(update={"name": "muon"}))
    tensors = optimizer.tensors()
    assert tensors["blocks.1.mlp.up.weight.momentum"].shape == (64, 16)
    assert "blocks.1.mlp.up.weight.exp_avg" not in tensors
    assert "head.weight.exp_avg" in tensors


def test_the_format_of_the_products_is_read_back(model, settings):
    for asked, bf16 in (("bf16", 1.0), ("float32", 0.0)):
        changed = OptimSection(lr=0.1, name="muon", muon={"newton_schulz": asked})
        live = build_optimizer(model, changed).live_settings()
        assert live["matrix.newton_schulz_bf16"] == bf16
