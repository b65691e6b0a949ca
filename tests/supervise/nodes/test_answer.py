from dataclasses import replace

import pytest

from longhaul.parallel.layout import Layout
from longhaul.supervise.causes import Cause
from longhaul.supervise.nodes.answer import (
    CORRUPT_A_DAY,
    Answer,
    MachineVerdict,
    answer,
    distrusted,
    on_one_machine,
)
from longhaul.supervise.nodes.ledger import Node, node_of
from longhaul.supervise.nodes.placement import Machine, World
from longhaul.supervise.nodes.reputation import WorldSpan
from longhaul.supervise.restart import Failure

A, B, C = (Machine(name, 2, node_of(name, [f"board:{name.upper()}"])) for name in "abc")
WORLD = World((A, B), Layout(4), 4)
NOW = 1e9


def answered(name: str, remedy: str = "restart", rank: int | None = 2, **more) -> Answer:
    cause = Cause(name, "", remedy, rank, more.pop("consequence", False))
    usual = {"world": WORLD, "worlds": (), "failures": (), "verdict": None, "now": NOW}
    return answer(cause, **usual | more)


def failed(machine: Machine, seconds_ago: float = 100.0) -> tuple[Node, float]:
    return machine.node, NOW - seconds_ago


def test_the_node_of_the_rank_is_blamed_and_once_is_no_pattern() -> None:
    said = answered("killed")
    assert said.node is B
    assert (said.left_out, said.suspects, said.cordoned) == ((), (), {})


def test_a_node_that_ends_attempts_again_is_left_out() -> None:
    said = answered("killed", failures=(failed(B),))
    assert said.left_out == ("b",)
    assert said.suspects == ("b",), "and must pass a probe if it is ever taken back"
    for others in ((failed(A),), (failed(B, 100_000.0),)):
        assert answered("killed", failures=others).left_out == ()
    alone = World((B,), Layout(2), 2)
    assert answered("killed", rank=0, world=alone, failures=(failed(B),)).left_out == ()


@pytest.mark.parametrize(
    ("name", "remedy", "consequence"),
    [("unknown: ValueError: N", "restart", False), ("out-of-memory", "stop", False),
     ("collective-failed", "restart", True)],
)  # fmt: skip
def test_the_program_and_other_ranks_are_blamed_on_no_machine(name, remedy, consequence) -> None:
    said = answered(name, remedy, failures=(failed(B),) * 3, consequence=consequence)
    assert said.node is None
    assert said.left_out == ()


def test_a_device_that_errs_is_probed_first_and_a_broken_one_cordoned() -> None:
    assert answered("cuda-error", "probe").suspects == ("b",)
    said = answered("gpu-lost", "cordon")
    assert said.cordoned == {"b": ("board:B",)}
    assert said.reason == "gpu-lost on b"


def test_a_hang_with_a_newcomer_is_the_newcomers_whoever_was_named() -> None:
    proven = WorldSpan((A.node, C.node), 500)
    worlds = (proven, WorldSpan((A.node, B.node), 7, hung=True))
    for rank in (0, 2, None):
        said = answered("hang", rank=rank, worlds=worlds)
        assert said.left_out == ("b",)
        assert said.node is B
    old_friends = (WorldSpan((A.node, B.node), 500), worlds[1])
    assert answered("hang", worlds=old_friends).left_out == ()


def test_wrong_numbers_cordon_a_node_only_where_another_bears_witness() -> None:
    verdict = MachineVerdict("corrupt", (3,), "step 40: rank 3 is odd", 30)
    said = answered("silent-corruption", "cordon", rank=0, verdict=verdict)
    assert said.cordoned == {"b": ("board:B",)}, "the verdict's rank counts, not who died first"
    both = replace(verdict, ranks=(0, 3))
    said = answered("silent-corruption", "cordon", rank=0, verdict=both)
    assert said.cordoned == {}
    assert said.suspects == ("a", "b")
    said = answered("silent-corruption", "cordon", rank=0)
    assert (said.cordoned, said.suspects) == ({}, ("a", "b"))


def test_checkpoints_after_the_last_sound_step_are_not_trusted() -> None:
    verdict = MachineVerdict("corrupt", (3,), "", 30)
    assert distrusted([10, 30, 31, 40], verdict) == [40, 31]
    assert distrusted([10, 40], replace(verdict, sound_step=None)) == [40, 10]


def test_the_only_machine_is_probed_when_two_ranks_differ_and_given_up_when_it_is_known() -> None:
    corrupt = Cause("silent-corruption", "", "cordon", 0)
    differ = MachineVerdict("corrupt", (), "ranks 0 and 1 differ", 20)
    named = replace(differ, ranks=(1,))
    assert on_one_machine(corrupt, differ, (), NOW).remedy == "probe"
    assert on_one_machine(corrupt, named, (), NOW).remedy == "cordon"
    assert on_one_machine(corrupt, None, (), NOW).remedy == "cordon"
    lately = [Failure("silent-corruption", "probe", 30, NOW - 60 * n) for n in range(CORRUPT_A_DAY)]
    assert on_one_machine(corrupt, differ, lately[1:], NOW).remedy == "probe"
    assert on_one_machine(corrupt, differ, lately, NOW).remedy == "cordon"
    assert on_one_machine(corrupt, differ, lately, NOW + 90_000).remedy == "probe"
