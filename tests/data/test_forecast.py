import pytest

from longhaul.config.load import with_overrides
from longhaul.core.errors import DataError
from longhaul.data.forecast import draws_at, forecast, step_at
from longhaul.data.mixture import MixturePlan, MixtureSource, plan_mixture


@pytest.fixture
def recipe(recipe_for):
    def make(steps: int | None = 10, **source: float):
        own = recipe_for(["a", "b"], source=source)
        limits = (
            {"train.steps": steps}
            if steps
            else {"train.steps": None, "train.max_hours": 1.0, "optim.schedule.shape": "constant"}
        )
        curriculum = [{"from_step": 4, "sequences": 4, "sequence_length": 4}]
        return with_overrides(own, {"batch.sequences": 4, "batch.stages": curriculum, **limits})

    return make


def plan(recipe, cycle=12, blocks=(10, 30), weights=(1.0, 1.0)) -> MixturePlan:
    many = zip("ab", blocks, weights, recipe.data.sources, strict=True)
    sources = [MixtureSource(n, w, b * 8, b, s.max_epochs) for n, b, w, s in many]
    return plan_mixture(sources, recipe.data, cycle)


def test_draws_and_steps_follow_the_curriculum(recipe) -> None:
    own = recipe()
    assert [draws_at(own, step) for step in (0, 1, 4, 5, 10)] == [0, 4, 16, 18, 28]
    assert [step_at(own, draw) for draw in (0, 3, 4, 15, 16, 18, 27)] == [0, 0, 1, 3, 4, 5, 9]


def test_how_often_each_source_will_have_been_read_is_said_before(recipe) -> None:
    (line,) = forecast(plan(recipe()), recipe())
    assert line == (
        "read by step 10: a 1.40 times (50.0% of the tokens), b 0.47 times (50.0% of the tokens)"
    )
    assert not list(forecast(plan(recipe(None)), recipe(None)))


def test_a_cap_is_said_with_the_step_from_which_it_holds(recipe) -> None:
    own = recipe(max_epochs=1.0)
    first, second = forecast(plan(own), own)
    assert first == ("a reaches data.sources.max_epochs 1 at step 5; its share goes to the others")
    assert "a 1.00 times" in second


def test_a_run_that_outlives_its_text_is_refused_with_the_step_at_which_it_ends(recipe) -> None:
    own = recipe(max_epochs=0.5)
    with pytest.raises(DataError, match=r"10 steps, and at step 6 every source") as caught:
        list(forecast(plan(own), own))
    assert "train.steps=6" in caught.value.remedy


def test_a_cycle_that_is_too_short_for_a_share_is_named(recipe) -> None:
    lines = list(forecast(plan(recipe(), weights=(1.0, 0.001)), recipe()))
    assert "b is asked for 0.100% of the tokens and gets 8.333%" in lines[-1]
    assert "order.cycle is 12 draws" in lines[-1]
    assert len(list(forecast(plan(recipe(), "auto", weights=(1.0, 0.001)), recipe()))) == 1


def test_a_source_too_small_for_a_sequence_is_said_and_breaks_nothing(recipe) -> None:
    lines = list(forecast(plan(recipe(), blocks=(0, 30)), recipe()))
    assert lines[0] == "a has not enough text for one training sequence"
