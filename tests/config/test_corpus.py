import pytest

from longhaul.config.corpus import CleanSection, FilterSection
from longhaul.config.load import load_recipe
from longhaul.core.errors import RecipeError

SYNTHETIC = "data.sources=[{path='synthetic'}]"


def load(*overrides):
    return load_recipe("quickstart", [SYNTHETIC, *overrides]).recipe.data


def test_nothing_is_cleaned_unless_a_recipe_says_so():
    data = load()
    assert (data.clean, data.filters) == (CleanSection(), FilterSection())
    assert data.sources[0].filtered
    assert not data.sources[0].adapter


def test_a_filter_is_a_switch_or_has_limits_of_its_own():
    filters = load(
        "data.filters.gopher=true", "data.filters.words=[10, 5e4]", "data.filters.symbols=0.2",
        "data.filters.bullets=false", "data.filters.length=[1, 9]",
        "data.filters.scripts=['latin', 'greek']",
    ).filters  # fmt: skip
    assert (filters.words, filters.symbols, filters.bullets) == ((10, 5e4), 0.2, False)
    assert (filters.length, filters.scripts) == ((1, 9), ("latin", "greek"))
    assert FilterSection.model_validate(filters.model_dump(mode="json"), strict=False) == filters


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("data.filters.words=50", "neither true, false nor [least, most]"),
        ("data.filters.words=[9, 1]", "neither true, false nor [least, most]"),
        ("data.filters.length=true", "neither false nor [least, most]"),
        ("data.filters.symbols=-1", "neither true, false nor a number from 0 on"),
        ("data.filters.scripts=['latn']", "did you mean 'latin'?"),
        ("data.filters.gofer=true", "did you mean data.filters.gopher?"),
        ("data.clean.unicode='NFKC'", "'NFKC' is not one of"),
        ("data.sources.0.adapter='mails'", "did you mean 'mail'?"),
    ],
)
def test_what_is_no_limit_is_refused(override, told):
    with pytest.raises(RecipeError) as refused:
        load(override)
    assert told in str(refused.value)
