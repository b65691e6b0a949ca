import pytest

from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.model import ModelSection
from longhaul.config.size import model_size

torch = pytest.importorskip("torch")

SWITCHES = [
    {},
    {"tied_head": True},
    {"positions": "learned"},
    {"norm": "layernorm"},
    {"norm": "layernorm", "bias": True},
    {"bias": True},
    {"mlp_width": 20},
    {"vocab_multiple": 64},
]


def counted(settings: ModelSection, vocab_size: int) -> int:
    from longhaul.model.gpt import GPT

    with torch.device("meta"):
        model = GPT(settings, vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("switches", SWITCHES)
def test_counts_equal_the_real_model_s(switches: dict[str, object]) -> None:
    settings = ModelSection(layers=3, heads=2, width=16, context=8, **switches)  # type: ignore[arg-type]
    assert model_size(settings, 101).total == counted(settings, 101)


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_shipped_recipes_count_as_the_real_model(name: str) -> None:
    settings = load_recipe(name).recipe.model
    assert model_size(settings, 50_257).total == counted(settings, 50_257)


def test_gpt2_s_known_size_and_palm_s_formula() -> None:
    settings = load_recipe("gpt2-124m", ["model.vocab_multiple=1"]).recipe.model
    size = model_size(settings, 50_257)
    assert size.total == 124_439_808
    assert size.active == 124_439_808 - 1024 * 768
    assert size.flops_per_token(1024) == 6 * size.active + 12 * 12 * 768 * 1024
    assert size.flops_per_token(1024, causal=True) == 6 * size.active + 6 * 12 * 768 * 1024
