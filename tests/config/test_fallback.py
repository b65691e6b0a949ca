import pytest

from longhaul.config.load import load_recipe
from longhaul.core.errors import RecipeError


def test_a_fallback_that_fits_the_recipe_is_kept_in_order() -> None:
    entries = (
        '[{name="calm", set={optim={lr=1e-4, clip=0.5}}}, {name="sgd", set={optim={name="sgdw"}}}]'
    )
    recipe = load_recipe("drill", [f"fallback={entries}"]).recipe
    assert [entry.name for entry in recipe.fallback] == ["calm", "sgd"]


def test_plans_b_that_could_not_be_told_apart_are_refused() -> None:
    entries = "[{name='b', set={optim={lr=1e-4}}}, {name='b', set={optim={lr=1e-5}}}]"
    with pytest.raises(RecipeError, match="two entries are called b"):
        load_recipe("drill", [f"fallback={entries}"])


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{optim={lr=-1.0}}", r"fallback\.0\.set\.optim\.lr: -1\.0 is not > 0"),
        ("{optim={lrr=1.0}}", r"fallback\.0\.set\.optim\.lrr: unknown setting"),
        ("{model={width=8}}", r"fallback\.0\.set\.model\.width: cannot change in a live run"),
        ("{optim={schedule={warmup_steps=9999}}}", r"fallback\.0\.set\.optim\.schedule"),
    ],
)
def test_a_fallback_that_could_not_be_put_in_force_is_told_at_once(entry: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        load_recipe("drill", [f'fallback=[{{name="b", set={entry}}}]'])
