import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.data import DataSection
from longhaul.core.errors import DataError
from longhaul.data.mixture import MixturePlan, MixtureSource, cycle_for, plan_mixture
from longhaul.data.order import Mixture, Order
from longhaul.logbook.mixture_changes import MixtureBefore


def data(**more: object) -> DataSection:
    return DataSection.model_validate({"sources": ({"path": "text"},)} | more)


def source(name: str, blocks: int, weight: float = 1.0, most: float | None = None) -> MixtureSource:
    return MixtureSource(name, weight, blocks * 16, blocks, most)


def read(plan: MixturePlan, begin: int, end: int) -> list[tuple[str, int, int]]:
    """Source, epoch and block of the draws from `begin` to `end`."""
    order = Order(1337, plan.names, plan.block_counts, plan.stages)
    found = order.blocks(np.arange(begin, end, dtype=np.int64)).T.tolist()
    return [(plan.names[number], epoch, block) for number, epoch, block in found]


def test_recipes_of_before_draw_the_same_order_bit_by_bit() -> None:
    stages = ({"from_draw": 10_000, "weights": {"a": 1.0, "b": 0.0, "c": 2.0}},)
    sources = [source("a", 700, 3.0), source("b", 1500), source("c", 90, 0.25)]
    plan = plan_mixture(sources, data(stages=stages), "auto")
    order = Order(1337, plan.names, plan.block_counts, plan.stages)
    blocks = order.blocks(np.arange(20_000, dtype=np.int64)).astype("<i8")
    # Of the version before temperatures, caps, and cycles that are longer where it takes that.
    assert hashlib.sha256(blocks.tobytes()).hexdigest()[:16] == "9f0cfa0d1c70c84d"


def test_a_share_finer_than_one_draw_in_4096_is_what_was_asked_for() -> None:
    weights = (1.0, 2e-5)
    cycle = cycle_for(weights)
    assert cycle > 4096
    assert Mixture(weights, cycle).counts[1] / cycle == pytest.approx(2e-5, rel=0.07)
    assert cycle_for((1.0, 1 / 4095)) == 4096


@pytest.mark.parametrize(
    ("temperature", "shares"), [(None, (1 / 2, 1 / 2)), (1.0, (0.8, 0.2)), (2.0, (2 / 3, 1 / 3))]
)
def test_temperature_is_between_shares_by_weight_and_shares_by_size(temperature, shares) -> None:
    plan = plan_mixture(
        [source("large", 400), source("small", 100)], data(temperature=temperature), "auto"
    )
    assert tuple(plan.shares(0).values()) == pytest.approx(shares)


def test_a_stage_gives_weights_that_count_as_the_recipe_s_do() -> None:
    stages = ({"from_draw": 50, "weights": {"large": 3.0}},)
    plan = plan_mixture(
        [source("large", 400), source("small", 100)], data(temperature=1.0, stages=stages), "auto"
    )
    assert plan.shares(50)["large"] == pytest.approx(12 / 13)


@given(
    blocks=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    most=st.sampled_from([0.5, 1.0, 1.5, 3.0]),
    capped=st.integers(0, 1),
)
@settings(max_examples=40, deadline=None)
def test_no_source_is_read_more_often_than_it_may_be_and_the_others_take_its_share(
    blocks: list[int], most: float, capped: int
) -> None:
    sources = [source(f"s{n}", count) for n, count in enumerate(blocks)]
    sources[capped] = replace(sources[capped], max_epochs=most)
    plan = plan_mixture(sources, data(), 12)
    ((draw, name),) = plan.left_out
    assert name == f"s{capped}"
    assert name in plan.shares(draw - 1)
    assert name not in plan.shares(draw)
    assert sum(plan.shares(draw).values()) == pytest.approx(1)
    most_blocks = max(1, int(most * blocks[capped]))
    assert plan.taken(draw)[name] == plan.taken(draw + 500)[name] == most_blocks
    assert plan.taken(draw - 1)[name] == most_blocks - 1
    assert plan.exhausted is None


def test_where_every_source_was_read_as_often_as_it_may_be_the_plan_says_from_which_draw() -> None:
    plan = plan_mixture([source("a", 10, most=2.0), source("b", 30, most=1.0)], data(), 12)
    assert plan.exhausted == 50
    assert [name for _, name in plan.left_out] == ["a", "b"]
    assert plan.taken(50) == {"a": 20, "b": 30}


def change(plan: MixturePlan, draw: int) -> MixtureBefore:
    """As it is read back from the journal."""
    return MixtureBefore.from_data(json.loads(json.dumps(plan.before(draw).as_data())))


CHANGES = st.lists(
    st.tuples(st.integers(1, 60), st.lists(st.sampled_from([0.3, 1.0, 4.0]), min_size=3,
                                           max_size=3)),
    min_size=1, max_size=4,
)  # fmt: skip


@given(changes=CHANGES, cycle=st.sampled_from(["auto", 7]))
@settings(max_examples=20, deadline=None)
def test_a_mixture_that_changes_under_way_loses_and_repeats_nothing(changes, cycle) -> None:
    """Of each source the blocks come in its own order, whatever was changed how often and when."""
    sizes = {"a": 11, "b": 30, "c": 50}
    sources = [source(name, count) for name, count in sizes.items()]
    plan, drawn, begin = plan_mixture(sources, data(), cycle), [], 0
    for length, weights in changes:
        end = begin + length
        drawn += read(plan, begin, end)
        begin, before = end, change(plan, end)
        sources = [replace(s, weight=w) for s, w in zip(sources, weights, strict=True)]
        plan = plan_mixture(sources, data(), cycle, before)
    drawn += read(plan, begin, begin + 100)
    assert read(plan, 0, begin + 100) == drawn, "what was drawn before is drawn the same again"
    for name, count in sizes.items():
        own = [(epoch, block) for n, epoch, block in drawn if n == name]
        alone = plan_mixture([source(name, count)], data(), cycle)
        assert own == [(epoch, block) for _, epoch, block in read(alone, 0, len(own))]


def test_a_source_that_is_added_begins_and_one_taken_away_and_put_back_goes_on() -> None:
    a, b, c = source("a", 20), source("b", 30), source("c", 40)
    first = plan_mixture([a, b], data(), 10)
    without = plan_mixture([c, b], data(), 10, change(first, 15))
    again = plan_mixture([a, b, c], data(), 10, change(without, 33))
    drawn = read(again, 0, 80)
    assert drawn[:15] == read(first, 0, 15)
    assert {name for name, _, _ in drawn[15:33]} == {"b", "c"}
    for each in (a, b, c):
        own = [block for name, epoch, block in drawn if name == each.name and epoch == 0]
        assert len(own) == len(set(own))
    assert again.taken(15)["c"] == 0


def test_a_source_with_other_text_cannot_go_on_where_it_was() -> None:
    first = plan_mixture([source("a", 20), source("b", 30)], data(), 10)
    with pytest.raises(DataError, match="a: it has 21 blocks to train on, and had 20"):
        plan_mixture([source("a", 21), source("b", 30)], data(), 10, change(first, 15))


def test_a_cap_counts_what_was_read_before_the_mixture_changed() -> None:
    sources = [source("a", 20), source("b", 30)]
    first = plan_mixture(sources, data(), 10)
    capped = [replace(sources[0], max_epochs=1.0), sources[1]]
    plan = plan_mixture(capped, data(), 10, change(first, 30))
    ((draw, name),) = plan.left_out
    assert (name, plan.taken(draw)["a"], draw) == ("a", 20, 39)
    late = plan_mixture(capped, data(), 10, change(first, 60))
    assert "a" not in late.shares(60)
