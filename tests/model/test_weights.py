from longhaul.config.model import ModelSection
from longhaul.model.initialise import build
from longhaul.model.weights import roles


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
