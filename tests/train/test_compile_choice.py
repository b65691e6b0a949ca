import pytest

from longhaul.config.load import load_recipe
from longhaul.train.compile_choice import Choice, Compiled, Work, choose, work_left


def chosen(passes: float, eager_s: float, found: Compiled | None, forms: int = 1) -> Choice:
    """Without anything to be found, nothing may be tried."""

    def measure() -> Compiled:
        assert found is not None, "it was tried"
        return found

    return choose(Work(passes, forms), eager_s, measure)


def test_a_run_too_short_for_any_gain_tries_nothing() -> None:
    choice = chosen(passes=200, eager_s=0.07, found=None)
    assert not choice.value
    assert "the run would take about 14.0 s uncompiled" in choice.reason
    assert not chosen(passes=200, eager_s=0.2, found=None, forms=4).value


@pytest.mark.parametrize(
    ("found", "forms", "compiles"),
    [
        (Compiled(compile_s=38, pass_s=0.041), 1, True),  # 288 s saved
        (Compiled(compile_s=38, pass_s=0.041), 8, False),  # for 304
        (Compiled(compile_s=300, pass_s=0.041), 1, False),
        (Compiled(compile_s=1, pass_s=0.066), 1, False),
    ],
)
def test_what_is_saved_must_win_back_what_every_form_takes(
    found: Compiled, forms: int, compiles: bool
) -> None:
    choice = chosen(passes=12_000, eager_s=0.065, found=found, forms=forms)
    assert choice.value is compiles
    assert "65 ms uncompiled" in choice.reason


def test_the_work_left_counts_passes_of_the_longest_shape_and_every_form() -> None:
    stages = "batch.stages=[{from_step=100, sequences=8, sequence_length=32}]"
    recipe = load_recipe(
        "drill",
        ["batch.sequences=8", "batch.micro_sequences=4", "batch.sequence_length=16",
         "model.context=32", stages, "train.steps=300", "monitor.gauge_interval_steps=25"],
    ).recipe  # fmt: skip
    # 100 steps of two half-long passes, 200 of two whole ones; two shapes, with gauges and without.
    assert work_left(recipe, 0, 0.1, at_once=4) == Work(500, 4)
    assert work_left(recipe, 200, 0.1, at_once=4) == Work(200, 4)
    hours = {"train": recipe.train.model_copy(update={"max_hours": 10 / 3600})}
    assert work_left(recipe.model_copy(update=hours), 0, 0.1, at_once=4).passes == 100


@pytest.mark.parametrize(
    ("graphs", "value", "said"),
    [
        (Compiled(compile_s=40, pass_s=0.03), "cuda-graphs", "a micro-batch takes 30 ms"),
        (Compiled(compile_s=40, pass_s=0.04), True, "too little to win their recording back"),
        (Compiled(compile_s=400, pass_s=0.03), True, "too little to win their recording back"),
        ("no memory", True, "CUDA graphs failed: no memory"),
    ],
)  # fmt: skip
def test_graphs_must_win_back_what_they_take_on_top(
    graphs: Compiled | str, value: bool | str, said: str
) -> None:
    found = Compiled(compile_s=38, pass_s=0.041)  # 12,000 passes: 11 ms less save 132 s
    choice = choose(Work(12_000, 1), 0.065, lambda: found, lambda: graphs)
    assert choice.value == value
    assert said in choice.reason


def test_graphs_are_not_tried_where_even_a_great_gain_would_not_pay() -> None:
    def never() -> str:
        raise AssertionError("they were tried")

    assert choose(Work(1000, 1), 0.5, lambda: Compiled(60, 0.1), never).value is True
