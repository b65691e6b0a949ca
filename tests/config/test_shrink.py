import pytest

from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.size import shrunken

SIZES = {
    *("layers", "heads", "kv_heads", "width", "mlp_width", "embedding_width", "context"),
    *("window", "window_stages", "window_full_every", "rotary_original_context"),
    *("bigram_rows", "value_embeddings"),
}


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_a_twin_keeps_every_switch_and_is_small(name: str) -> None:
    recipe = load_recipe(name).recipe
    twin = load_recipe(name, shrunken(recipe)).recipe
    assert twin.name == f"{name}-small"
    assert twin.model.layers <= 4
    assert twin.model.width <= 64
    assert twin.total_steps() == 200
    changed = {
        field
        for field, value in twin.model.model_dump().items()
        if value != getattr(recipe.model, field)
    }
    assert changed <= SIZES
    assert twin.optim.name == recipe.optim.name
    if recipe.precision.compute == "auto":
        assert twin.precision.compute == "float32"
    else:
        assert twin.precision == recipe.precision


def test_overrides_given_after_the_twins_win() -> None:
    twin = shrunken(load_recipe("gpt2-124m").recipe)
    assert load_recipe("gpt2-124m", [*twin, "train.steps=40"]).recipe.total_steps() == 40


@pytest.mark.parametrize("share", [1.0, 0.5, 0.35, 0.1])
def test_the_twin_of_a_model_that_rotates_a_share_of_its_heads_can_be_built(share: float) -> None:
    own = f"model.rotary_share={share}"
    twin = load_recipe("llama-1b", [own, *shrunken(load_recipe("llama-1b", [own]).recipe)]).recipe
    assert twin.model.rotated_width == (16 * share if share >= 0.5 else 2)


def test_a_text_of_ones_own_stays() -> None:
    twin = shrunken(load_recipe("gpt2-124m").recipe, own_data=True)
    recipe = load_recipe("gpt2-124m", twin, data="my.txt").recipe
    assert [source.path for source in recipe.data.sources] == ["my.txt"]


def test_the_twin_has_no_stages_of_sources_that_it_does_not_read() -> None:
    two = (
        'data.sources=[{name="web", path="synthetic"}, {name="books", path="python-stdlib"}]',
        "data.stages=[{from_draw=100, weights={web=0.0}}]",
        'data.contamination={action="remove", evaluation_sets=["nowhere.txt"]}',
    )
    recipe = load_recipe("quickstart", two).recipe
    twin = load_recipe("quickstart", (*two, *shrunken(recipe))).recipe
    assert [source.path for source in twin.data.sources] == ["python-stdlib"]
    assert not twin.data.stages
    assert twin.data.contamination.action == "off"
