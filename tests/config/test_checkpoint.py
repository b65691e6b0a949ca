import pytest

from longhaul.config.load import load_recipe, recipe_from_values
from longhaul.core.errors import RecipeError


def loaded(*options: str):
    return load_recipe("quickstart", options).recipe.checkpoint


def test_one_address_or_several_or_none() -> None:
    assert loaded().remote == ()
    assert loaded("checkpoint.remote=''").remote == ()
    assert loaded("checkpoint.remote='s3://bucket/runs'").remote == ("s3://bucket/runs",)
    several = loaded("checkpoint.remote=['s3://bucket/runs', '/mnt/backup']").remote
    assert several == ("s3://bucket/runs", "/mnt/backup")


def test_what_was_asked_survives_a_dump() -> None:
    options = ["checkpoint.remote=['a', 'b']", "checkpoint.interval_steps='auto'"]
    recipe = load_recipe("quickstart", options).recipe
    assert recipe_from_values(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize("value", ["3", "['a', 3]", "{a = 'b'}"])
def test_a_remote_place_that_is_none_is_told_once(value: str) -> None:
    with pytest.raises(RecipeError, match=r"checkpoint\.remote") as raised:
        loaded(f"checkpoint.remote={value}")
    assert "has 1 problem" in str(raised.value)


def test_an_interval_is_a_number_of_steps_or_auto() -> None:
    assert loaded("checkpoint.interval_steps='auto'").interval_steps == "auto"
    assert loaded("checkpoint.interval_steps=0").interval_steps == 0
    for wrong, why in (("-1", "is not >= 0|≥ 0"), ("1.5", "auto"), ("'often'", "auto")):
        with pytest.raises(RecipeError, match=why) as raised:
            loaded(f"checkpoint.interval_steps={wrong}")
        assert "has 1 problem" in str(raised.value)
