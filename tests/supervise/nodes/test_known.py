import pytest

from longhaul.config.recover import NodeSection
from longhaul.core.errors import UsageError
from longhaul.supervise.nodes.known import find_node, known_nodes, word_on
from longhaul.supervise.nodes.ledger import NodeEvent, cordons, node_of
from longhaul.supervise.nodes.roster import LeftOut

NOW = 1_000_000.0


def event(kind: str, host: str, *parts: str, ago: float = 100.0, **more) -> NodeEvent:
    return NodeEvent(kind=kind, parts=parts, host=host, time=NOW - ago, **more)


EVENTS = (
    event("probed", "a", "board:A", "gpu:1", "gpu:2"),
    event("joined", "a", "board:A", "gpu:1", "gpu:2"),
    event("failed", "a", "board:A", "gpu:1", "gpu:2", cause="cuda-error"),
    event("failed", "a", "board:A", "gpu:1", "gpu:2", cause="cuda-error"),
    event("corrected", "a", "board:A", "gpu:1", "gpu:2", count=70),
    event("joined", "b", "board:B", ago=50),
    event("left", "b", "board:B", ago=10),
    event("cordoned", "a", "gpu:2", reason="gpu-lost"),
)


def word(name: str, kind: str, reason: str = "new memory", events=EVENTS) -> NodeEvent:
    return word_on(find_node(known_nodes(events, NOW), name), name, kind, reason, "ann", NOW)


def test_all_that_was_seen_of_a_node_stands_in_one_row() -> None:
    a, b = known_nodes(EVENTS, NOW)
    assert (a.node.host, a.node.parts) == ("a", {"board:A", "gpu:1", "gpu:2"})
    assert (a.probes, a.causes, a.corrected) == (1, {"cuda-error": 2}, 70)
    assert list(a.cordoned) == ["gpu:2"]
    assert a.in_use
    assert (b.used, b.in_use, b.causes, b.cordoned) == (NOW - 10, False, {}, {})


def test_a_board_with_other_gpus_is_the_same_node_and_its_old_gpu_makes_no_other_board_it() -> None:
    moved = (*EVENTS, event("joined", "a2", "board:A", "gpu:3"),
             event("joined", "c", "board:C", "gpu:1"))  # fmt: skip
    found = {one.node.host: one for one in known_nodes(moved, NOW)}
    assert set(found) == {"a2", "b", "c", "a"}
    assert found["a2"].node.parts == {"board:A", "gpu:3"}
    assert found["a"].node.parts == {"gpu:2"}, "cordoned, and now in no known node"
    failures = [sum(found[name].causes.values()) for name in ("a2", "c")]
    assert failures == [2, 2], "each line concerns all its parts"


def test_a_recipes_entry_is_known_before_it_was_seen() -> None:
    entries = (NodeSection(name="a", identity=("board:A",)), NodeSection(name="z"),
               NodeSection(name="y", identity=("board:Y",)))  # fmt: skip
    assert [one.node.host for one in known_nodes(EVENTS, NOW, entries)] == ["a", "b", "y"]
    assert known_nodes((), NOW, entries)[1].used is None


def test_an_unknown_node_is_answered_with_the_nearest_known_one() -> None:
    events = (event("joined", "rack7-node12", "board:X"), event("joined", "head", "board:Y"))
    with pytest.raises(UsageError, match="nothing is known of it") as error:
        find_node(known_nodes(events, NOW), "rack7-nod12")
    assert "did you mean rack7-node12?" in error.value.remedy
    with pytest.raises(UsageError) as error:
        find_node((), "b")
    assert "no node has been seen" in error.value.remedy


def test_a_name_that_two_nodes_have_had_must_be_told_by_a_part() -> None:
    twice = known_nodes((*EVENTS, event("joined", "b", "board:B2")), NOW)
    with pytest.raises(UsageError, match="2 nodes have had that name") as error:
        find_node(twice, "b")
    assert "board:B, board:B2" in error.value.remedy
    assert find_node(twice, "board:B2").node.key == "board:B2"


def test_a_word_says_who_and_why_and_changes_what_is_cordoned() -> None:
    lifted = word("a", "released")
    assert (lifted.parts, lifted.who, lifted.reason) == (("gpu:2",), "ann", "new memory")
    assert cordons((*EVENTS, lifted)) == {}
    put = word("b", "cordoned", "it smells burnt")
    assert cordons((*EVENTS, put)).keys() == {"gpu:2", "board:B"}
    one = word("gpu:1", "cordoned")
    assert one.parts == ("gpu:1",), "a part that is named is meant alone"


@pytest.mark.parametrize(
    ("name", "kind", "reason", "said"),
    [
        ("a", "released", " ", "no reason is given"),
        ("b", "released", "why not", "is not cordoned"),
        ("gpu:2", "cordoned", "again", "cordoned already: gpu-lost"),
    ],
)
def test_a_word_without_a_reason_or_an_effect_is_refused(name, kind, reason, said) -> None:
    with pytest.raises(UsageError, match=said):
        word(name, kind, reason)


def test_a_node_that_a_run_has_left_out_may_be_released_too() -> None:
    out = LeftOut(node_of("b", ["board:B"]), "it hung", NOW - 60)
    known = known_nodes(EVENTS, NOW, left_out=(out,))
    assert find_node(known, "b").left_out == "it hung"
    lifted = word_on(find_node(known, "b"), "b", "released", "a new cable", "ann", NOW)
    assert not find_node(known_nodes((*EVENTS, lifted), NOW + 1, left_out=(out,)), "b").left_out
