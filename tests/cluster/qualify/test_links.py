"""The bad cable is named, and no other."""

import itertools
import random

import pytest

from longhaul.cluster.qualify.comparing import Limits
from longhaul.cluster.qualify.judge_links import bad_sides, judge_links
from longhaul.cluster.qualify.records import Measurement, Report

LIMITS = Limits(warn=0.8, fail=0.6)
LATE = Limits(warn=0.2, fail=0.2, lower_is_better=True)


def rates(nodes: str, seed: int = 0) -> dict[tuple[str, str], float]:
    noise = random.Random(seed)
    return {pair: 50e9 * noise.uniform(0.9, 1.0) for pair in itertools.permutations(nodes, 2)}


@pytest.mark.parametrize("nodes", ["abc", "abcd", "abcdefghijklmnop"])
@pytest.mark.parametrize("seed", range(5))
def test_noise_names_nobody(nodes: str, seed: int) -> None:
    assert bad_sides(rates(nodes, seed), LIMITS) == []


@pytest.mark.parametrize("nodes", ["abc", "abcd", "abcdefgh"])
def test_a_node_that_sends_slowly_is_named_with_its_side(nodes: str) -> None:
    found = rates(nodes) | {("b", other): 10e9 for other in nodes if other != "b"}
    assert [(side.nodes, side.direction) for side in bad_sides(found, LIMITS)] == [
        (("b",), "sends")
    ]


@pytest.mark.parametrize("nodes", ["abc", "abcd", "abcdefgh"])
def test_a_slow_pair_of_fast_nodes_is_named_and_neither_node(nodes: str) -> None:
    found = rates(nodes) | {("b", "c"): 10e9}
    assert [side.nodes for side in bad_sides(found, LIMITS)] == [("b", "c")]


def test_two_bad_cables_are_both_named() -> None:
    nodes = "abcdefgh"
    found = rates(nodes)
    found |= {(x, other): 9e9 for x in "bg" for other in nodes if other != x}
    assert {side.nodes for side in bad_sides(found, LIMITS)} == {("b",), ("g",)}


def test_of_two_nodes_nobody_can_be_blamed() -> None:
    assert bad_sides({("a", "b"): 50e9, ("b", "a"): 1e9}, LIMITS) == []


def test_a_late_pair_is_named_and_a_time_that_nobody_feels_is_not() -> None:
    late = dict.fromkeys(itertools.permutations("abc", 2), 0.0001) | {("a", "c"): 0.02}
    assert [side.nodes for side in bad_sides(late, LATE, least=1e-3)] == [("a", "c")]
    assert bad_sides({**late, ("a", "c"): 9e-4}, LATE, least=1e-3) == []


def report(host: str, rank: int, *measured: Measurement) -> Report:
    return Report(rank=rank, host=host, parts=(f"board:{host}",), hardware="cpu", time=0.0,
                  measurements=measured)  # fmt: skip


def test_who_did_not_come_is_named_and_who_waited_is_not() -> None:
    waited = Measurement(group="links", name="hang", wrong="all-reduce timed out")
    reports = [report("a", 0, waited), report("c", 2, waited)]
    checks = list(judge_links(reports, {}, [(1, "b", "the first collective")]))
    assert [(c.node, c.device) for c in checks if c.verdict == "fail"] == [("b", "rank 1")]
    assert "rank 1 on b did not come to the first collective" in checks[0].reason


def test_a_hang_of_nobody_in_particular_blames_no_node() -> None:
    waited = Measurement(group="links", name="hang", wrong="all-reduce timed out")
    checks = list(judge_links([report("a", 0, waited)], {}, ()))
    assert [(c.node, c.verdict) for c in checks] == [("", "fail")]


def test_a_slow_cable_is_one_finding_with_a_remedy() -> None:
    nodes = "abcd"
    found = rates(nodes) | {("b", other): 1e9 for other in nodes if other != "b"}
    reports = [
        report(n, rank, *(
            Measurement(group="links", name="pair rate", device=f"{a} → {b}", unit="B/s", value=v)
            for (a, b), v in found.items() if a == n
        ))
        for rank, n in enumerate(nodes)
    ]  # fmt: skip
    failed = [c for c in judge_links(reports, {}, ()) if c.verdict == "fail"]
    assert [(c.node, c.device) for c in failed] == [("b", "b sends")]
    assert "cable" in failed[0].remedy
