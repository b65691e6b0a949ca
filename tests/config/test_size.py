import pytest

from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.model import ModelSection
from longhaul.config.size import model_size

torch = pytest.importorskip("torch")

OPT_175B = ModelSection(
    layers=96, heads=96, width=12288, context=2048, positions="learned", norm="layernorm",
    activation="relu", bias=True, qk_norm=False, tied_head=True,
)  # fmt: skip
YALM_100B = ModelSection(
    layers=80, heads=128, width=10240, embedding_width=2048, mlp_width=27308, context=1024,
    norm="layernorm", activation="geglu", bias=True, qk_norm=False, tied_head=True,
    embedding_norm=True,
)  # fmt: skip
"""Every linear layer of YaLM has a bias (its published code), except in the projections."""

LLAMA_8B = ModelSection(
    layers=32, heads=32, kv_heads=8, width=4096, mlp_width=14336, context=8192,
    activation="swiglu", qk_norm=False,
)  # fmt: skip
OPT_350M = ModelSection(
    layers=24, heads=16, width=1024, embedding_width=512, context=2048, positions="learned",
    norm="layernorm", norm_placement="post", activation="relu", bias=True, qk_norm=False,
    tied_head=True,
)  # fmt: skip


def counted(settings: ModelSection, vocab_size: int) -> int:
    from longhaul.model.gpt import GPT

    with torch.device("meta"):
        model = GPT(settings, vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())


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


@pytest.mark.parametrize(
    ("settings", "vocab_size", "published", "tolerance"),
    [
        (OPT_175B, 50_272, 175e9, 0.01),
        (YALM_100B, 128_000, 100e9, 0.02),
        # To the last parameter: transformers counts two rows of positions more for OPT.
        (OPT_350M, 50_272, 331_196_416 - 2 * 1024, 0.0),
        (LLAMA_8B, 128_256, 8_030_261_248, 0.0),
    ],
)
def test_published_models_have_their_published_size(
    settings: ModelSection, vocab_size: int, published: float, tolerance: float
) -> None:
    total = model_size(settings, vocab_size).total
    assert abs(total - published) <= tolerance * published, f"{total:,}"


def test_tables_are_looked_up_and_cost_no_flops() -> None:
    plain = ModelSection(layers=4, heads=2, width=16, context=8)
    tables = plain.model_copy(
        update={"bigram_rows": 1000, "value_embeddings": 2, "positions": "learned"}
    )
    more = model_size(tables, 101).total - model_size(plain, 101).total
    assert more > 1000 * 16 + 2 * 101 * 16
    grown = model_size(tables, 101).flops_per_token(8) - model_size(plain, 101).flops_per_token(8)
    assert grown <= 6 * 3 * plain.layers  # only the shares by which values are mixed


def test_the_head_multiplies_at_the_table_s_width() -> None:
    size = model_size(ModelSection(layers=1, heads=2, width=64, embedding_width=8, context=8), 1000)
    assert size.head == 8000
    assert size.projections == 2 * 8 * 64
    assert size.active == size.blocks + size.around_blocks + size.head + size.projections


@pytest.mark.parametrize(
    ("span", "window", "attended", "causal"),
    [
        (64, 16, 16, 16 - 16 * 16 / (2 * 64)),
        (16, 16, 16, 8),
        (8, 16, 8, 4),
    ],
)
def test_a_window_limits_the_span_of_its_layers(
    span: int, window: int, attended: int, causal: float
) -> None:
    settings = ModelSection(
        layers=4, heads=2, width=16, context=64, window=window, window_full_every=2
    )
    size = model_size(settings, 101)
    assert size.flops_per_token(span) == 6 * size.active + 12 * 16 * 2 * (span + attended)
    expected = 6 * size.active + 12 * 16 * 2 * (span / 2 + causal)
    assert size.flops_per_token(span, causal=True) == expected
    # A stage of the window's warm-up holds for the layers that have a window, and for them only.
    staged = 6 * size.active + 12 * 16 * 2 * (span + min(span, 4))
    assert size.flops_per_token(span, stage_window=4) == staged
