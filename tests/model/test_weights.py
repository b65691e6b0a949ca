import torch

from longhaul.config.model import ModelSection
from longhaul.config.optim import OptimSection
from longhaul.config.train import PrecisionSection
from longhaul.model.initialise import build
from longhaul.model.weights import add_in_place, roles
from longhaul.optim.update_rules import build_optimizer
from longhaul.train.step import TrainingStep


def roles_of(**changes: object) -> dict[str, str]:
    shape = {"layers": 1, "heads": 2, "width": 8, "context": 4, "bias": True}
    model = build(ModelSection.model_validate(shape | changes), 21, seed=0)
    assert len(list(roles(model))) == len(list(model.parameters()))
    return {name: role for name, _, role in roles(model)}


def test_every_weight_has_the_role_it_plays():
    found = roles_of(positions="learned", tied_head=False, norm="layernorm")
    assert found == {
        "tokens.weight": "embedding",
        "positions.weight": "position",
        "blocks.0.attention_norm.weight": "vector",
        "blocks.0.attention_norm.bias": "vector",
        "blocks.0.attention.qkv.weight": "matrix",
        "blocks.0.attention.qkv.bias": "vector",
        "blocks.0.attention.out.weight": "matrix",
        "blocks.0.attention.out.bias": "vector",
        "blocks.0.mlp_norm.weight": "vector",
        "blocks.0.mlp_norm.bias": "vector",
        "blocks.0.mlp.up.weight": "matrix",
        "blocks.0.mlp.up.bias": "vector",
        "blocks.0.mlp.down.weight": "matrix",
        "blocks.0.mlp.down.bias": "vector",
        "final_norm.weight": "vector",
        "final_norm.bias": "vector",
        "head.weight": "head",
    }


def test_a_tied_head_is_the_token_table_and_counted_once():
    found = roles_of(tied_head=True, positions="rotary")
    assert "head" not in found.values()
    assert "position" not in found.values()
    assert list(found.values()).count("embedding") == 1


def test_switches_give_their_weights_the_role_that_their_updates_need():
    found = roles_of(
        layers=2, embedding_width=4, bigram_rows=9, value_embeddings=1, input_mix=True,
        unet_skips=True, embedding_norm=True, attention_head_scale=True, value_residual=True,
    )  # fmt: skip
    assert found["project_in.weight"] == found["project_out.weight"] == "matrix"
    assert found["bigrams.weight"] == found["value_tables.0.weight"] == "embedding"
    assert found["head.weight"] == "head"
    of_vectors = {
        "skips.weight", "embedding_norm.weight", "blocks.0.input_mix.weight",
        "blocks.0.attention.head_scale.weight", "blocks.1.attention.value_mix.weight",
        "blocks.0.attention.extra_value_mix.weight",
    }  # fmt: skip
    assert {found[name] for name in of_vectors} == {"vector"}


def test_tables_that_add_in_place_get_the_bits_of_those_that_do_not():
    shape = {"layers": 1, "heads": 2, "width": 8, "context": 4, "bigram_rows": 7}
    settings = ModelSection.model_validate(shape)
    plain, in_place = build(settings, 5, seed=0), build(settings, 5, seed=0)
    add_in_place(in_place)
    batches = torch.tensor([[[0, 1, 1, 4], [1, 1, 1, 1]], [[2, 1, 0, 0], [3, 3, 0, 1]]])
    for tokens_BT in batches:  # the second one adds to what the first one left
        for model in (plain, in_place):
            model(tokens_BT, tokens_BT.roll(-1)).backward()
    wanted, got = dict(plain.named_parameters()), dict(in_place.named_parameters())
    for name, weight in wanted.items():
        assert weight.grad is not None
        assert torch.equal(got[name].grad, weight.grad), name
    assert got["bigrams.weight"].grad is not None


def test_tables_in_half_precision_do_not_add_in_place():
    settings = ModelSection.model_validate({"layers": 1, "heads": 2, "width": 8, "context": 4})
    model = build(settings, 5, seed=0).bfloat16()
    add_in_place(model)
    assert not model.tokens.adds_in_place


def test_a_hook_sees_the_gradient_of_a_table_that_would_add_in_place():
    settings = ModelSection.model_validate({"layers": 1, "heads": 2, "width": 8, "context": 4})
    model, seen = build(settings, 5, seed=0), []
    add_in_place(model)
    model.tokens.weight.register_hook(seen.append)
    tokens_BT = torch.tensor([[0, 1, 1, 4]])
    model(tokens_BT, tokens_BT).backward()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], model.tokens.weight.grad)


def test_a_table_that_is_the_head_too_does_not_add_in_place():
    shape = {"layers": 1, "heads": 2, "width": 8, "context": 4, "bigram_rows": 7}
    model = build(ModelSection.model_validate(shape | {"tied_head": True}), 5, seed=0)
    optim = OptimSection.model_validate({"lr": 0.1})
    device = torch.device("cpu")
    step = TrainingStep(model, build_optimizer(model, optim), device, PrecisionSection(), 1)
    assert not step.model.tokens.adds_in_place
    assert step.model.bigrams.adds_in_place
