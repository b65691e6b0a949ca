import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.config.train import ParallelSection
from longhaul.core.errors import RecipeError
from longhaul.parallel.layout import Layout, layout_for


def test_without_a_word_all_processes_are_shards() -> None:
    assert layout_for(ParallelSection(), 4) == Layout(shard=4)


def test_the_absent_one_of_shard_and_replicate_takes_what_is_left() -> None:
    assert layout_for(ParallelSection(shard=1), 4) == Layout(replicate=4)
    assert layout_for(ParallelSection(shard=2), 4) == Layout(replicate=2, shard=2)
    assert layout_for(ParallelSection(replicate=4), 4) == Layout(replicate=4)
    assert layout_for(ParallelSection(tensor=2), 4) == Layout(shard=2, tensor=2)
    assert layout_for(ParallelSection(tensor=2, pipeline=2), 4) == Layout(tensor=2, pipeline=2)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (ParallelSection(tensor=3), "parallel.tensor × parallel.pipeline"),
        (ParallelSection(replicate=2, shard=4), "parallel.replicate × parallel.shard"),
        (ParallelSection(shard=3), "parallel.shard: 3 does not fit"),
        (ParallelSection(tensor=2, pipeline=4), "parallel.tensor × parallel.pipeline"),
    ],
)
def test_a_layout_of_another_size_is_refused_by_name(settings: ParallelSection, named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        layout_for(settings, 4)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_each_data_rank_has_as_many_ranks(r: int, s: int, t: int, p: int) -> None:
    layout = Layout(r, s, t, p)
    ranks = [layout.data_rank(rank) for rank in range(layout.size)]
    assert sorted(ranks) == sorted(list(range(r * s)) * (t * p))
