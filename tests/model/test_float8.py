"""Matrices that multiply in float8, emulated: which, how nearly, and with what as it was."""

import sys

import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.core.errors import UsageError
from longhaul.model.float8 import to_float8
from longhaul.model.gpt import GPT
from longhaul.model.initialise import allocate, build, initialise
from longhaul.optim.groups import make_groups

CPU = torch.device("cpu")


def section(**settings: object) -> ModelSection:
    shape = {"layers": 2, "heads": 2, "width": 32, "context": 16, "zero_head": False} | settings
    return ModelSection.model_validate(shape)


def made(*, float8: bool, **settings: object) -> GPT:
    model = build(section(**settings), 21, seed=3)
    if float8:
        to_float8(model, CPU)
    return model


def gradients(model: GPT) -> tuple[float, dict[str, torch.Tensor]]:
    tokens_BT = torch.randint(21, (3, 13), generator=torch.Generator().manual_seed(0))
    loss = model(tokens_BT[:, :-1], tokens_BT[:, 1:]) / 36
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_loss_and_gradients_are_nearly_those_of_float32_and_not_the_same() -> None:
    (exact, wanted), (loss, found) = (gradients(made(float8=way)) for way in (False, True))
    assert loss != exact
    assert loss == pytest.approx(exact, rel=0.01)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert gradient.dtype == found[name].dtype == torch.float32
        distance = torch.linalg.vector_norm(found[name] - gradient)
        assert distance <= 0.2 * torch.linalg.vector_norm(gradient), name


def test_weights_roles_and_parts_stay_as_they_are() -> None:
    plain, float8 = made(float8=False), made(float8=True)
    for (name, weight), (_, other) in zip(
        plain.named_parameters(), float8.named_parameters(), strict=True
    ):
        assert torch.equal(weight, other), name
    groups = [
        [(group.role, group.names, group.parts) for group in make_groups(model)]
        for model in (plain, float8)
    ]
    assert groups[0] == groups[1]
    assert any(len(parts) == 3 for _, _, of_group in groups[0] for parts in of_group)


@pytest.mark.parametrize("zero_projections", [False, True])
def test_a_model_that_is_filled_afterwards_has_the_same_weights(zero_projections: bool) -> None:
    settings = section(zero_projections=zero_projections)
    plain = build(settings, 21, seed=3)
    later = allocate(settings, 21, CPU)
    to_float8(later, CPU)
    initialise(later, settings, seed=3)
    for (name, weight), other in zip(plain.named_parameters(), later.parameters(), strict=True):
        assert torch.equal(weight, other), name


def test_head_and_matrices_of_odd_sizes_are_left_out() -> None:
    model = made(float8=True, mlp_width=40)
    kinds = {n: type(m).__name__ for n, m in model.named_modules() if hasattr(m, "role")}
    assert kinds.pop("head", "Linear") == "Linear"
    assert {"Linear", "Float8Linear"} <= set(kinds.values())
    assert all(kind != "Float8Linear" for name, kind in kinds.items() if "mlp" in name)


def test_without_torchao_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(UsageError) as refused:
        made(float8=True)
    assert "longhaul[float8]" in refused.value.remedy
