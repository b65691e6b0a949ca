import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.config.optim import OptimSection
from longhaul.model.initialise import build
from longhaul.model.weights import Linear
from longhaul.optim.groups import describe, learning_rate, make_groups, weight_decay
from longhaul.optim.sharding import Sharding


def test_every_weight_is_in_exactly_one_group_under_its_own_name(model):
    named = dict(model.named_parameters())
    grouped = [
        (name, parameter)
        for group in make_groups(model)
        for name, parameter in zip(group.names, group.parameters, strict=True)
    ]
    assert sorted(name for name, _ in grouped) == sorted(named)
    assert all(named[name] is parameter for name, parameter in grouped)


def test_the_table_adds_up_and_says_rate_and_decay(model, settings):
    rows = {role: row for role, *row in describe(make_groups(model), settings)}
    assert list(rows) == ["matrix", "embedding", "position", "head", "vector"]
    tensors, parameters, rates, decays = (
        dict(zip(rows, column, strict=True)) for column in zip(*rows.values(), strict=True)
    )
    assert sum(parameters.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert tensors["matrix"] == 2 * 4
    assert parameters["position"] == 8 * 16
    assert set(rates.values()) == {settings.lr}
    assert decays["matrix"] == settings.weight_decay
    assert decays["vector"] == 0.0


def test_of_a_part_of_a_model_the_table_tells_the_whole(model, settings):
    whole = {"position": 7_000, "matrix": 9_000_000}
    sharding = Sharding(
        pieces={}, world=None, holders=None, replicas=None, roles=whole,
        weights={"position": 1, "matrix": 48}, stages=2, loss_copies=1,
    )  # fmt: skip
    rows = describe(make_groups(model), settings, sharding)
    assert [row[:3] for row in rows] == [
        ("matrix", 48, 9_000_000),
        ("position", 1, 7_000),
    ]


@pytest.mark.parametrize("decay_embeddings", [False, True])
def test_which_roles_decay(decay_embeddings):
    settings = OptimSection(lr=1.0, weight_decay=0.5, decay_embeddings=decay_embeddings)
    tables = 0.5 if decay_embeddings else 0.0
    decays = {
        role: weight_decay(role, settings)
        for role in ("matrix", "head", "embedding", "position", "vector")
    }
    assert decays == {
        "matrix": 0.5,
        "head": 0.5,
        "embedding": tables,
        "position": tables,
        "vector": 0.0,
    }


def test_a_role_has_its_own_rate():
    settings = OptimSection(lr=0.1, lr_factors={"embedding": 3.0})
    assert learning_rate("embedding", settings, 0.02) == 0.06
    assert learning_rate("matrix", settings, 0.02) == 0.02
    model = build(ModelSection(layers=1, heads=1, width=8, context=4), 21, seed=0)
    rows = {role: rate for role, _, _, rate, _ in describe(make_groups(model), settings)}
    assert rows["embedding"] == pytest.approx(0.3)
    assert rows["head"] == 0.1


@pytest.mark.parametrize(("parts", "rows"), [(1, (12,)), (3, (4, 4, 4)), ((6, 3, 3), (6, 3, 3))])
def test_a_fused_weight_tells_the_rows_of_its_parts(parts, rows):
    fused = Linear(5, 12, bias=True)
    fused.parts = parts
    matrices, vectors = make_groups(torch.nn.Sequential(fused))
    assert matrices.parts == (rows,)
    assert vectors.parts == ((12,),)


def test_roles_that_do_not_occur_have_no_row():
    model = build(ModelSection(layers=1, heads=1, width=8, context=4, tied_head=True), 21, seed=0)
    assert [group.role for group in make_groups(model)] == ["matrix", "embedding", "vector"]


def test_frozen_weights_are_left_out(model):
    model.tokens.weight.requires_grad_(False)
    assert "embedding" not in [group.role for group in make_groups(model)]
