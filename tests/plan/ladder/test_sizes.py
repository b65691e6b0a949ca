"""Sizes of shipped recipes."""

from itertools import pairwise

import pytest

from longhaul.config.load import load_recipe, shipped_recipes, with_overrides
from longhaul.core.errors import UsageError
from longhaul.plan.ladder.variants import ladder_sizes

MANY_HEADS = sorted(set(shipped_recipes()) - {"drill"})


@pytest.mark.parametrize("name", MANY_HEADS)
def test_sizes_keep_the_recipes_proportions_and_end_in_the_recipe(name: str) -> None:
    recipe = load_recipe(name).recipe
    sizes = ladder_sizes(recipe, 3, None, None)
    assert len(sizes) == 4
    assert (sizes[-1].layers, sizes[-1].width) == (recipe.model.layers, recipe.model.width)
    for smaller, larger in pairwise(sizes):
        assert 1.5 < larger.parameters / smaller.parameters < 9
    for size in sizes:
        model = with_overrides(recipe, size.settings).model
        assert model.key_width == recipe.model.key_width
        assert model.heads // model.key_heads == recipe.model.heads // recipe.model.key_heads
        assert model.inner_width / model.width == pytest.approx(
            recipe.model.inner_width / recipe.model.width, rel=0.01
        )
        assert size.steps == recipe.total_steps()


def test_no_size_is_larger_than_it_may_be() -> None:
    recipe = load_recipe("gpt2-124m").recipe
    sizes = ladder_sizes(recipe, 3, 30e6, None)
    assert 25e6 < sizes[-1].parameters <= 30e6


@pytest.mark.parametrize("of_steps", [True, False])
def test_tokens_in_proportion_to_parameters_move_everything_that_is_timed(of_steps: bool) -> None:
    options = () if of_steps else ("train={tokens = 747110400}",)
    recipe = load_recipe("speedrun-124m", options).recipe
    sizes = ladder_sizes(recipe, 3, None, 20.0)
    for size in sizes:
        assert size.tokens == pytest.approx(20 * size.parameters, rel=0.05)
        sized = with_overrides(recipe, size.settings)
        share = size.steps / 1900
        assert sized.total_steps() == size.steps
        assert sized.optim.muon.momentum_warmup_steps == round(300 * share)
        assert sized.model.window_stages[2].from_step == pytest.approx(1200 * share, abs=2)


def test_tokens_of_a_curriculum_are_counted_stage_by_stage() -> None:
    recipe = load_recipe("drill", ("model.heads=8",)).recipe
    (*_, last) = ladder_sizes(recipe, 3, None, None)
    assert last.tokens == 150 * 16 * 32 + 150 * 8 * 64


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("drill", (), "its 2 heads make 2 sizes"),
        (
            "quickstart",
            ("train={max_hours = 1.0}", 'optim.schedule.shape="constant"'),
            "only hours limit it",
        ),
    ],
)
def test_a_recipe_without_sizes_is_refused_with_the_way_out(
    name: str, options: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        ladder_sizes(load_recipe(name, options).recipe, 3, None, None)
    assert "--set" in refused.value.remedy
