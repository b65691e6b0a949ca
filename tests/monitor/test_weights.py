import math

import pytest
import torch

from longhaul.config.train import PrecisionSection
from longhaul.model.initialise import to_number_format
from longhaul.monitor import weights
from longhaul.monitor.weights import WeightGauges, present, tensors_norm
from longhaul.optim.groups import make_groups
from longhaul.optim.update_rules import build_optimizer

ROLES = ("matrix", "embedding", "position", "head", "vector")


def watched_update(optimizer, scale=None, loss=2.0):
    """An update as the trainer makes it; its gauges."""
    gauges = WeightGauges(optimizer.groups)
    gate = optimizer.judge(torch.tensor(loss), scale)
    with gauges.watch(optimizer, gate, scale):
        optimizer.step(gate)
    optimizer.clear_gradients()
    return present(gauges.names, gauges.drain().tolist())


def norm(tensors) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def copies(group):
    return [weight.detach().double().clone() for weight in group.parameters]


def expected(optimizer, make_step, scale=1.0):
    """The same from whole tensors in float64, the second moments followed from the first step."""
    groups = {group.role: group for group in optimizer.groups}
    before = {role: copies(group) for role, group in groups.items()}
    gradients = {
        role: [weight.grad.double().clone() / scale for weight in group.parameters]
        for role, group in groups.items()
    }
    read = make_step()
    found = {}
    for role, group in groups.items():
        moved = [a - b for a, b in zip(copies(group), before[role], strict=True)]
        elements = sum(gradient.numel() for gradient in gradients[role])
        zeros = sum(int((gradient == 0).sum()) for gradient in gradients[role])
        found |= {
            f"gradient_norm.{role}": norm(gradients[role]),
            f"weight_norm.{role}": norm(before[role]),
            f"update_ratio.{role}": norm(moved) / norm(before[role]),
            f"gradient_zero_share.{role}": zeros / elements,
        }
    return read, found, gradients


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon", "sgdw"])
def test_gauges_equal_those_of_whole_tensors(model, make_settings, fill_gradients, name):
    optimizer = build_optimizer(model, make_settings(name=name))
    moments = {}
    for step in range(1, 4):
        fill_gradients(model, seed=step)
        read, found, gradients = expected(optimizer, lambda: watched_update(optimizer))
        clip = min(1.0, 0.5 / norm(g for of_role in gradients.values() for g in of_role))
        for role, of_role in gradients.items():
            if name == "sgdw" or (name == "muon" and role == "matrix"):
                assert f"second_moment_ratio.{role}" not in read
                continue
            squares, elements = 0.0, 0
            for number, gradient in enumerate(of_role):
                clipped = gradient * clip
                moment = moments.get((role, number), torch.zeros_like(clipped))
                moment = moments[role, number] = 0.9 * moment + 0.1 * clipped.square()
                unbiased = moment / (1 - 0.9**step)
                squares += float((clipped.square() / unbiased.clamp_min(1e-12)).sum())
                elements += gradient.numel()
            found[f"second_moment_ratio.{role}"] = math.sqrt(squares / elements)
        assert read.keys() == found.keys()
        assert {name.partition(".")[2] for name in read} == set(ROLES)
        for gauge, value in found.items():
            assert read[gauge] == pytest.approx(value, rel=1e-4), gauge


def test_a_steady_gradient_has_a_second_moment_ratio_of_one_and_a_jump_a_higher_one(
    model, make_settings, fill_gradients
):
    optimizer = build_optimizer(model, make_settings(clip=0.0))
    for _ in range(20):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.01)
        read = watched_update(optimizer)
    assert read["second_moment_ratio.matrix"] == pytest.approx(1.0, abs=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1.0)
    assert watched_update(optimizer)["second_moment_ratio.matrix"] > 2.3


def test_a_loss_scale_is_undone(model, make_settings, fill_gradients):
    fill_gradients(model, seed=1, scale=1024.0)
    optimizer = build_optimizer(model, make_settings())
    scale = torch.tensor(1024.0)
    read, found, _ = expected(optimizer, lambda: watched_update(optimizer, scale), scale=1024.0)
    for gauge, value in found.items():
        assert read[gauge] == pytest.approx(value, rel=1e-4), gauge
    # In the first step v̂ is g², whatever the scale: about two thirds of it are not 0.
    assert read["second_moment_ratio.head"] == pytest.approx(math.sqrt(2 / 3), rel=0.1)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_half_weights_are_compared_after_rounding(model, make_settings, fill_gradients, name):
    to_number_format(model, PrecisionSection(compute="bf16_weights"))
    fill_gradients(model, seed=1)
    optimizer = build_optimizer(model, make_settings(name=name, lr=0.05))
    read, found, _ = expected(optimizer, lambda: watched_update(optimizer))
    for gauge, value in found.items():
        assert read[gauge] == pytest.approx(value, rel=1e-4), gauge


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon", "sgdw"])
def test_a_masked_update_moves_nothing_and_names_the_broken_role(
    model, make_settings, fill_gradients, name
):
    fill_gradients(model, seed=1)
    model.head.weight.grad[3, 3] = math.nan
    read = watched_update(build_optimizer(model, make_settings(name=name)))
    assert [read[f"update_ratio.{role}"] for role in ROLES] == [0.0] * 5
    broken = [role for role in ROLES if not math.isfinite(read[f"gradient_norm.{role}"])]
    assert broken == ["head"]


def test_a_role_of_zeros_has_no_ratio_to_divide_by(model, make_settings, fill_gradients):
    with torch.no_grad():
        model.head.weight.zero_()
    fill_gradients(model, seed=1)
    read = watched_update(build_optimizer(model, make_settings()))
    assert read["update_ratio.head"] == 0.0


def test_a_weight_without_a_gradient_counts_as_one_of_zeros(model, make_settings, fill_gradients):
    fill_gradients(model, seed=1)
    model.head.weight.grad = None
    read = watched_update(build_optimizer(model, make_settings()))
    assert read["gradient_zero_share.head"] == 1.0
    assert read["gradient_norm.head"] == read["update_ratio.head"] == 0.0
    assert read["second_moment_ratio.head"] == 0.0


def test_large_weights_are_sampled_in_every_column(
    monkeypatch, model, make_settings, fill_gradients
):
    monkeypatch.setattr(weights, "_SAMPLE", 150)
    marked = torch.zeros(64, 48)
    marked.flatten()[:: weights._stride(marked)] = 1
    assert 100 < marked.sum() <= 160
    assert bool((marked.sum(dim=0) > 0).all())
    fill_gradients(model, seed=1)
    optimizer = build_optimizer(model, make_settings())
    read, found, _ = expected(optimizer, lambda: watched_update(optimizer))
    for gauge, value in found.items():
        exact = gauge.startswith(("gradient_norm", "weight_norm"))
        assert read[gauge] == pytest.approx(value, rel=1e-4 if exact else 0.3), gauge
    assert read["update_ratio.matrix"] != pytest.approx(found["update_ratio.matrix"], rel=1e-6)


def test_memory_of_a_sample_does_not_grow_with_the_weight():
    taken = [weights._Sample([torch.empty(rows, 1024)]) for rows in (1 << 10, 1 << 14)]
    sizes = [sample.of([torch.empty(0)]).numel() + sample._size for sample in taken]
    assert max(sizes) <= 2 * weights._SAMPLE
    assert abs(sizes[0] - sizes[1]) < 0.1 * sizes[0]


def test_the_norm_of_halves_is_summed_in_float32():
    assert tensors_norm([torch.full((4,), 6e4, dtype=torch.float16)]) == pytest.approx(1.2e5)


def test_gauges_of_another_optimizer_of_the_same_model_fit(model, make_settings, fill_gradients):
    gauges = WeightGauges(make_groups(model))
    for name in ("adamw", "sgdw"):
        optimizer = build_optimizer(model, make_settings(name=name))
        fill_gradients(model, seed=1)
        gate = optimizer.judge(torch.tensor(1.0))
        with gauges.watch(optimizer, gate, None):
            optimizer.step(gate)
        names = present(gauges.names, gauges.drain().tolist())
        assert ("second_moment_ratio.head" in names) == (name == "adamw")
