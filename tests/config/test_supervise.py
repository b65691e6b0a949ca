import pytest

from longhaul.config.load import load_recipe
from longhaul.core.errors import RecipeError


def settings(*options: str):
    return load_recipe("drill", options).recipe.supervise


def test_every_deadline_follows_from_one_setting() -> None:
    default, twice = settings().deadlines(), settings("supervise.deadline_s=60").deadlines()
    assert twice == {name: 2 * seconds for name, seconds in default.items()}
    assert default["deadline_s"] < default["save_s"] < default["collective_s"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("supervise.save_s=10",), "supervise.save_s: 10 is below the 30 of a step"),
        (("supervise.deadline_s=60", "supervise.start_up_s=50"), "50 is below the 60 of a step"),
        (("supervise.collective_s=500",), "500 is not beyond supervise.start_up_s 600"),
        (("supervise.deadline_s=0",), "0 is not > 0"),
    ],
)
def test_deadlines_in_a_wrong_order_are_refused(options, told) -> None:
    with pytest.raises(RecipeError) as refused:
        settings(*options)
    assert told in str(refused.value)


def test_one_longer_deadline_moves_the_timeout_of_collectives() -> None:
    assert settings("supervise.save_s=5000").deadlines()["collective_s"] == 10_000


def test_nodes_are_tables_of_their_own() -> None:
    found = settings(
        'supervise.node=[{name="a"}, {name="b", command=["env"], identity=["board:B"], spare=true}]'
    )
    assert [(node.name, node.slots, node.spare) for node in found.node] == [
        ("a", 1, False), ("b", 1, True),
    ]  # fmt: skip
    assert settings().node == ()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (('supervise.node=[{name="a"}, {name="a"}]',), "two nodes are called a"),
        (('supervise.node=[{name="a", slots=2}, {name="b"}]',), "different numbers of slots"),
        (('supervise.node=[{name="a", spare=true}]',), "every node is a spare"),
        (('supervise.node=[{name="a", identity=["A17"]}]',), "supervise.node.0.identity.0"),
        (('supervise.node=[{name="a"}]', "machine.processes=2"), "2 processes are not the 1 slots"),
    ],
)
def test_nodes_that_make_no_sense_are_refused(options, told) -> None:
    with pytest.raises(RecipeError) as refused:
        settings(*options)
    assert told in str(refused.value)
