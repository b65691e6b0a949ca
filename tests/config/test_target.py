"""What a run is to reach, and by when."""

import pytest

from longhaul.config.load import load_recipe, with_overrides
from longhaul.config.recipe import change_of
from longhaul.core.errors import RecipeError


def of(deadline: object):
    recipe = load_recipe("drill").recipe
    return with_overrides(recipe, {"target.deadline": deadline, "target.loss": 2.5}, {}).target


def test_a_deadline_is_utc_where_it_says_nothing_else():
    assert of("2027-01-31 18:00").deadline_time == 1801418400.0
    assert of("2027-01-31T18:00+02:00").deadline_time == 1801418400.0 - 7200
    assert of(None).deadline_time is None
    assert change_of("target.deadline") == change_of("target.loss") == "live"


@pytest.mark.parametrize("deadline", ["tomorrow", "", "2027-13-01", 5])
def test_what_is_no_moment_is_refused_by_name(deadline):
    with pytest.raises(RecipeError, match=r"target\.deadline"):
        of(deadline)
