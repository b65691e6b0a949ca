from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from longhaul.config.recover import SuperviseSection
from longhaul.parallel.layout import Layout
from longhaul.supervise.nodes.ledger import NodeEvent, node_of
from longhaul.supervise.nodes.placement import Machine, NodePlan
from longhaul.supervise.nodes.roster import (
    LEFT_OUT_S,
    PROBE_AGAIN_S,
    LeftOut,
    Standing,
    can_do_without,
    choose,
    larger,
    replaced_at_once,
)

NOW = 1_000_000_000.0
DAY_S = 86_400.0


def machine(name: str, board: str = "", **more) -> Machine:
    return Machine(
        name, 1, node_of(name, [f"board:{board or name.upper()}"]), imitated=True, **more
    )


A, B, C = machine("a"), machine("b"), machine("c", spare=True)


def event(of: Machine, kind: str, days_ago: float = 1.0, **more) -> NodeEvent:
    time = NOW - days_ago * DAY_S
    return NodeEvent(kind=kind, parts=tuple(of.node.parts), host=of.name, time=time, **more)


def probed(*machines: Machine) -> tuple[NodeEvent, ...]:
    return tuple(event(m, "probed", 0.5) for m in machines)


def plan(wanted: Layout, ledger: str | None = "shared") -> NodePlan:
    return NodePlan(SuperviseSection(node_ledger=ledger), wanted, 32, Path())


STANDING = Standing((A, B, C), plan(Layout(2)), probed(A, B, C), now=NOW)


def names(choice) -> tuple[str, ...]:
    return choice.world.names if choice.world else ()


def test_the_recipes_nodes_train_and_its_spares_wait() -> None:
    choice = choose(STANDING)
    assert names(choice) == ("a", "b")
    assert choice.absent == {"c": "a spare"}
    assert choice.probe == ()


def test_a_node_nobody_knows_is_probed_unless_the_recipe_is_all_there_is() -> None:
    unknown = replace(STANDING, events=())
    assert [m.name for m in choose(unknown).probe] == ["a", "b"]
    trusting = replace(unknown, plan=plan(Layout(2), ledger=None))
    assert choose(trusting).probe == ()
    later = replace(trusting, before=("a", "b"), gone={"b": "it does not answer"})
    assert [m.name for m in choose(later).probe] == ["c"], "nobody joins a running job unprobed"
    late = replace(trusting, machines=(A, replace(B, ordered=True)))
    assert [m.name for m in choose(late).probe] == ["b"]


def test_those_that_have_just_worked_together_stay_together() -> None:
    worse = (*STANDING.events, *probed(B), event(B, "failed", 2), *probed(B))
    assert names(choose(replace(STANDING, events=worse))) == ("a", "c")
    together = replace(STANDING, events=worse, before=("a", "b"))
    assert names(choose(together)) == ("a", "b"), "one failure changes nothing"


def test_a_cordoned_part_keeps_its_node_out_whatever_else_is_missing() -> None:
    cordoned = (*STANDING.events, event(B, "cordoned", reason="gpu-lost"))
    assert names(choose(replace(STANDING, events=cordoned))) == ("a", "c")
    alone = replace(STANDING, machines=(A, B), events=cordoned)
    choice = choose(alone)
    assert names(choice) == ("a",)
    assert choice.world.shrunk
    assert "b has board:B, which was cordoned: gpu-lost" in choice.without()
    same_board = replace(alone, machines=(B, machine("z", board="B")))
    choice = choose(same_board)
    assert choice.world is None
    assert set(choice.absent) == {"b", "z"}


def test_a_node_left_out_on_suspicion_is_taken_back_before_the_run_stops() -> None:
    out = LeftOut(B.node, "it hung", NOW - 10)
    assert names(choose(replace(STANDING, left_out=(out,)))) == ("a", "c")
    assert names(choose(replace(STANDING, machines=(A, B), left_out=(out,)))) == ("a",)
    only = replace(STANDING, machines=(B,), plan=plan(Layout(1)), left_out=(out,))
    assert names(choose(only)) == ("b",)
    old = replace(out, time=NOW - LEFT_OUT_S)
    assert names(choose(replace(STANDING, left_out=(old,)))) == ("a", "b")


def test_a_node_that_has_not_passed_its_probe_is_tried_again_later() -> None:
    failed = replace(event(B, "probed"), passed=False, reason="hot", time=NOW - 1)
    at_once = replace(STANDING, events=(*STANDING.events, failed))
    assert names(choose(at_once)) == ("a", "c")
    later = replace(at_once, now=NOW + PROBE_AGAIN_S, machines=(A, B))
    choice = choose(later)
    assert names(choice) == ("a", "b")
    assert [m.name for m in choice.probe] == ["b"]


def test_a_suspect_is_probed_even_if_it_was_in_the_world() -> None:
    known = replace(STANDING, before=("a", "b"), suspects=frozenset({"b"}))
    assert [m.name for m in choose(known).probe] == ["b"]


def test_a_slow_node_gives_way_only_to_another_one() -> None:
    slow = replace(STANDING, before=("a", "b"), slow=frozenset({"b"}))
    assert names(choose(slow)) == ("a", "c")
    assert names(choose(replace(slow, machines=(A, B)))) == ("a", "b")


@given(
    st.integers(1, 4), st.integers(1, 2),
    st.lists(st.sampled_from(["fit", "gone", "cordoned", "left out", "slow"]), min_size=1,
             max_size=6),
)  # fmt: skip
def test_whatever_is_known_nobody_joins_who_must_not_and_everybody_is_accounted_for(
    replicas, tensor, fates
) -> None:
    machines = tuple(machine(f"n{number}") for number in range(len(fates)))
    of = {fate: [m for m, own in zip(machines, fates, strict=True) if own == fate]
          for fate in set(fates)}  # fmt: skip
    standing = Standing(
        machines, plan(Layout(replicas, 1, tensor)),
        (*probed(*machines), *(event(m, "cordoned") for m in of.get("cordoned", ()))),
        gone={m.name: "it does not answer" for m in of.get("gone", ())},
        left_out=tuple(LeftOut(m.node, "hung", NOW) for m in of.get("left out", ())),
        slow=frozenset(m.name for m in of.get("slow", ())), now=NOW,
    )  # fmt: skip
    choice = choose(standing)
    never = {m.name for fate in ("gone", "cordoned") for m in of.get(fate, ())}
    assert not never & set(names(choice))
    assert set(names(choice)) | set(choice.absent) == {m.name for m in machines}
    assert not set(names(choice)) & set(choice.absent)
    usable = len(machines) - len(never)
    assert (choice.world is None) == (usable < tensor)
    if choice.world:
        assert choice.world.layout.size <= len(names(choice))
        assert choice.world.layout.tensor == tensor


def test_a_release_ends_cordon_suspicion_and_the_wait_after_a_probe_that_was_not_passed() -> None:
    out = LeftOut(B.node, "it hung", NOW - 100)
    failed = replace(event(B, "probed", passed=False), time=NOW - 50)
    events = (*STANDING.events, event(B, "cordoned", reason="gpu-lost"), failed)
    known = replace(STANDING, events=events, left_out=(out,))
    assert names(choose(known)) == ("a", "c")
    released = replace(event(B, "released"), time=NOW - 1)
    choice = choose(replace(known, events=(*events, released)))
    assert names(choice) == ("a", "b")
    assert [m.name for m in choice.probe] == ["b"], "not before it has passed a probe"
    before = replace(known, events=(replace(released, time=NOW - 200), *events))
    assert names(choose(before)) == ("a", "c"), "what came after it holds"


def test_a_released_node_is_probed_even_if_its_last_probe_was_passed() -> None:
    word = event(B, "cordoned", 0.2, reason="it smells burnt", who="ann")
    lifted = event(B, "released", 0.1, reason="a new fan", who="ann")
    choice = choose(replace(STANDING, events=(*STANDING.events, word, lifted)))
    assert (names(choice), [m.name for m in choice.probe]) == (("a", "b"), ["b"])


def test_a_run_can_do_without_a_node_that_a_spare_or_fewer_replicas_stand_in_for() -> None:
    running = replace(STANDING, before=("a", "b"))
    assert can_do_without(running, A)
    bound = replace(running, plan=plan(Layout(tensor=2)), gone={"c": "it does not answer"})
    assert not can_do_without(bound, A)


def test_a_slow_node_is_replaced_at_once_only_where_that_is_asked_for_and_a_proven_one_is_there():
    world = choose(STANDING).world
    asked = replace(
        STANDING.plan, settings=SuperviseSection(node_ledger="shared", replace_stragglers=True)
    )
    slow = replace(STANDING, before=("a", "b"), slow=frozenset({"b"}), plan=asked)
    assert replaced_at_once(slow, world) == ["b"]
    assert replaced_at_once(replace(slow, plan=STANDING.plan), world) == []
    assert replaced_at_once(replace(slow, events=probed(A, B)), world) == [], "c must be probed"
    assert replaced_at_once(replace(slow, gone={"c": "away"}), world) == []


def test_a_shrunk_world_grows_once_a_node_is_back() -> None:
    short = replace(STANDING, machines=(A, B), gone={"b": "it does not answer"})
    world = choose(short).world
    assert world.shrunk
    assert larger(short, world) is None
    assert larger(replace(short, gone={}), world).names == ("a", "b")
