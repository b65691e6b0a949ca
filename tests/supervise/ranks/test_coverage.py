import pytest

from longhaul.parallel.layout import Layout
from longhaul.supervise.ranks.stragglers import in_words, looks


def watched(layout: Layout, device: str, alike: float) -> tuple[bool, ...]:
    nodes = [f"n{rank}" for rank in range(layout.size)]
    return tuple(look.watched for look in looks(layout, nodes, 100, 100, device, alike))


@pytest.mark.parametrize(
    ("layout", "device", "alike", "seen"),
    [
        (Layout(replicate=2), "cpu", 1.0, (True, True, True)),
        (Layout(shard=2), "cpu", 0.0, (True, False, True)),
        (Layout(tensor=2), "cpu", 0.01, (True, True, False)),
        (Layout(tensor=2), "cuda", 0.01, (False, True, False)),
        (Layout(pipeline=2), "cpu", 0.0, (False, False, False)),
        (Layout(pipeline=2, replicate=2), "cuda", 1.0, (True, True, True)),
    ],
)
def test_who_has_no_peer_cannot_be_watched(
    layout: Layout, device: str, alike: float, seen: tuple[bool, ...]
) -> None:
    assert watched(layout, device, alike) == seen


def test_a_pipeline_alone_is_told_what_nobody_sees_and_why() -> None:
    said = in_words(looks(Layout(pipeline=2), ["a", "b"], 100, 0, "cpu", 0.0))
    assert said == (
        "ranks are not watched for slow ranks (each stage of the pipeline is one rank, without a "
        "peer), wrong weights (every weight is held by one rank alone), wrong numbers "
        "(monitor.witness_every=0)"
    )


def test_weights_that_are_held_once_are_not_called_watched() -> None:
    _, weights, _ = looks(Layout(shard=2, tensor=2), ["a"] * 4, 50, 50, "cpu", 0.0123)
    assert weights.how.startswith("1.23% of them: the rest is held by one rank alone")
    _, weights, numbers = looks(Layout(replicate=3), ["a"] * 3, 50, 50, "cpu", 1.0)
    assert weights.how == "all, among 3 replicas, every 50 steps"
    assert numbers.how.endswith("one node alone has no witness against it")
