import json
import math

import pytest

from longhaul.config.load import load_recipe
from longhaul.core.errors import UsageError
from longhaul.plan.value.analysis import OVERALL, analyse, as_data, as_lines, spearman
from longhaul.plan.value.variants import ValuePlan, plan_value, variants_of

THREE = (
    'data.sources=[{name="a", path="synthetic"}, {name="b", path="synthetic", weight=2.0}, '
    '{name="c", path="python-stdlib"}]',
    "data.drop_exact_duplicates=false", "model.heads=4",
)  # fmt: skip


def plan(*options: str, **more) -> ValuePlan:
    recipe = load_recipe("quickstart", (*THREE, *options)).recipe
    given = {"shares": (0.5, 0.25), "seeds": 3, "tokens": 100_000, "changes": (), "cores": 2,
             "on_gpu": False}  # fmt: skip
    return plan_value(recipe, **(given | more))


def names(made: ValuePlan) -> list[str]:
    return [variant.name for variant in made.variants]


def test_each_source_is_left_out_once_by_a_weight_of_0_so_that_it_still_judges() -> None:
    made = plan("data.stages=[{from_draw=50, weights={a=1.0, b=0.0, c=0.0}}]")
    assert names(made) == ["all", "without a", "without b", "without c"]
    recipe = load_recipe("quickstart", (*THREE, "data.stages=[{from_draw=50, weights={a=1.0}}]"))
    settings = made.variants[1].settings_for(recipe.recipe)
    assert [s["weight"] for s in settings["data.sources"]] == [0.0, 2.0, 1.0]
    assert settings["data.stages"][0]["weights"] == {"a": 0.0}
    assert not any(variant.prepares for variant in made.variants)


def test_filters_that_are_on_are_switched_off_one_by_one_and_changes_are_tried() -> None:
    made = plan("data.drop_exact_duplicates=true", 'data.contamination.action="report"',
                changes=("data.held_out.fraction=0.1",))  # fmt: skip
    assert names(made)[4:] == [
        "without drop_exact_duplicates", "without contamination.action",
        "with data.held_out.fraction=0.1",
    ]  # fmt: skip
    assert dict(made.variants[4].settings) == {"data.drop_exact_duplicates": False}
    assert all(variant.prepares for variant in made.variants[4:])
    with pytest.raises(UsageError, match=r"optim\.lr is no setting below data"):
        list(variants_of(load_recipe("quickstart", THREE).recipe, ("optim.lr=1",)))


def test_all_models_train_on_the_same_number_of_tokens_and_the_bill_says_how_many() -> None:
    made = plan()
    assert [size.name for size in made.sizes] == ["1x48", "2x96"]
    assert len({size.tokens for size in made.sizes}) == 1
    assert made.sizes[0].tokens == pytest.approx(100_000, rel=0.05)
    assert len(made.cells) == 2 * 4 * 3
    assert "24 models with 3 seeds, 2 at a time" in list(made.bill())[-1]


def test_the_default_length_is_what_a_quarter_of_an_hour_is_enough_for() -> None:
    assert plan(tokens=None).seconds == pytest.approx(900, rel=0.1)
    assert plan("train.steps=40", tokens=None).seconds < 600, "nor longer than the recipe's"


def test_a_recipe_with_nothing_to_compare_or_too_few_sizes_says_what_to_do() -> None:
    alone = 'data.sources=[{path="synthetic"}]'
    with pytest.raises(UsageError, match="one source and no filter"):
        plan(alone)
    with pytest.raises(UsageError, match="they make 1x48, 1x48"):
        plan(shares=(0.25, 0.26))


def losses(made: ValuePlan, worth: dict[str, tuple[float, float]], noise: float = 0.0):
    """Of each variant the difference at both sizes; seeds differ by much, alike for all."""
    return {
        cell: {
            name: 5.0 + cell.seed % 3 + worth.get(made.variants[cell.variant].name,
                                                  (0, 0))[cell.size]
            + noise * math.sin(7 * cell.seed + cell.variant)
            for name in "abc"
        }
        for cell in made.cells
    }  # fmt: skip


def test_differences_are_taken_seed_by_seed_and_the_ranking_is_judged_plainly() -> None:
    made = plan()
    worth = {"without a": (0.3, 0.2), "without b": (0.1, 0.1), "without c": (-0.1, -0.2)}
    value = analyse(made, losses(made, worth, noise=0.001))
    last = value.sizes[-1]
    assert [w.variant.name for w in last.worths] == ["without a", "without b", "without c"]
    assert last.worths[0].overall.value == pytest.approx(0.2, abs=0.002)
    assert last.worths[0].overall.high - 0.2 < 0.01, "what all seeds have alike is no noise"
    assert [w.verdict.partition(";")[0] for w in last.worths] == [
        "loss rises", "loss rises", "loss falls",
    ]  # fmt: skip
    assert "the ranking holds from 1x48 to 2x96" in value.agreements[0].sentence
    turned = {name: (first, -second) for name, (first, second) in worth.items()}
    other = analyse(made, losses(made, turned)).agreements[0].sentence
    assert "does not hold" in other
    table = "\n".join(as_lines(value))
    assert "+0.2" in table
    assert "3 of 3 differences can be told from none" in table
    data = json.loads(json.dumps(as_data(value), allow_nan=False))
    assert data["sizes"][0]["variants"][0]["difference"][OVERALL][0] == pytest.approx(0.3, abs=0.01)


def test_what_a_source_does_for_the_others_is_told_apart_from_what_it_does_for_itself() -> None:
    made = plan()
    found = losses(made, {})
    for cell, own in found.items():
        if made.variants[cell.variant].name == "without a":
            found[cell] = own | {"a": own["a"] + 2, "b": own["b"] - 0.1, "c": own["c"] - 0.3}
    worth = analyse(made, found).sizes[0].worths[0]
    assert worth.overall.value == pytest.approx(1.6 / 3)
    assert worth.elsewhere is not None
    assert worth.elsewhere.value == pytest.approx(-0.2)
    assert worth.verdict == "loss rises; on other text loss falls"


def test_a_model_that_diverged_is_said_to_and_breaks_no_table() -> None:
    made = plan()
    found = losses(made, {})
    found[made.cells[1]] = dict.fromkeys("abc", math.nan)
    value = analyse(made, found)
    verdicts = {w.variant.name: w.verdict for w in value.sizes[0].worths}
    assert verdicts["without a"] == "diverged"
    json.dumps(as_data(value), allow_nan=False)
    assert "too few" in value.agreements[0].sentence


def test_rank_correlation_is_that_of_the_textbook() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Ties share their mean rank: ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9487, abs=1e-4)
    assert math.isnan(spearman([1, 2], [1, 2]))
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))
