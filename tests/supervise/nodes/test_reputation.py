from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.supervise.nodes.ledger import Node, NodeEvent, node_of
from longhaul.supervise.nodes.reputation import (
    CORRECTED_PER_HOUR,
    WorldSpan,
    admit,
    after_corrected_errors,
    after_hang,
    by_reliability,
    failures_per_day,
)

HOUR, DAY = 3600.0, 86_400.0
NOW = 1000 * DAY


def node(name: str) -> Node:
    return node_of(f"host-{name}", [f"gpu:gpu-{name}", f"board:board-{name}"])


A, B, C, D = (node(name) for name in "abcd")


def of(who: Node, kind: str, ago: float, **more) -> NodeEvent:
    return NodeEvent(
        kind=kind, parts=tuple(sorted(who.parts)), host=who.host, time=NOW - ago, **more
    )


def in_order(*events: NodeEvent) -> list[NodeEvent]:
    return sorted(events, key=lambda event: event.time)


def test_a_node_that_was_never_probed_is() -> None:
    assert admit(A, [], NOW).verdict == "probe"
    assert admit(A, [of(A, "probed", HOUR)], NOW).verdict == "take"
    assert admit(A, [of(A, "probed", 8 * DAY)], NOW).verdict == "probe"
    assert admit(A, [of(A, "probed", HOUR, passed=False)], NOW).verdict == "probe"
    seen = [of(A, "probed", 2 * HOUR), of(A, "failed", HOUR, cause="cuda-error")]
    assert admit(A, seen, NOW).reason == "host-a has failed since its last probe: cuda-error"


def test_a_bad_machine_that_comes_back_under_another_name_is_refused() -> None:
    events = [of(A, "cordoned", DAY, reason="ecc-uncorrectable on host-a"), of(A, "probed", HOUR)]
    renamed = node_of("host-new", A.parts)
    verdict = admit(renamed, events, NOW)
    assert verdict.verdict == "refuse"
    assert verdict.reason == (
        "host-new has board:board-a, which was cordoned, then called host-a: "
        "ecc-uncorrectable on host-a"
    )
    rebuilt = node_of("host-new", ["gpu:gpu-a", "board:new"])
    assert admit(rebuilt, events, NOW).verdict == "refuse", "its GPU is the bad one's"
    assert admit(B, events, NOW).verdict == "probe"


def test_a_cordon_of_a_gpu_alone_holds_for_good_and_for_that_gpu() -> None:
    parts = ("gpu:gpu-a",)
    cordoned = NodeEvent(kind="cordoned", parts=parts, host=A.host, time=NOW - 900 * DAY)
    assert admit(A, [cordoned], NOW).verdict == "refuse"
    assert (
        admit(node_of("host-a", ["gpu:another", "board:board-a"]), [cordoned], NOW).verdict
        == "probe"
    )


def test_corrected_errors_that_pile_up_drain_the_node_and_old_ones_do_not() -> None:
    each = int(CORRECTED_PER_HOUR // 4)
    lately = [of(A, "corrected", minutes * 60, count=each) for minutes in (50, 40, 30)]
    assert not after_corrected_errors(A, lately, NOW)
    lately.append(of(A, "corrected", 60, count=each))
    drained = after_corrected_errors(A, lately, NOW)
    assert "corrected 60 memory errors within an hour" in drained
    assert not after_corrected_errors(A, lately, NOW + HOUR)
    assert not after_corrected_errors(B, lately, NOW)


def test_a_newcomer_after_whose_arrival_the_job_hangs_is_evicted() -> None:
    worlds = [WorldSpan((A, B), 5000), WorldSpan((A, C), 3, hung=True)]
    newcomers, reason = after_hang(worlds)
    assert newcomers == (C,)
    assert reason == ("the world without host-c made 5000 steps; with it it hung after 3")
    # It is the newcomer's doing even where another rank is the one that waits.
    assert after_hang(worlds, named=A)[0] == (C,)


@pytest.mark.parametrize(
    "worlds",
    [
        [],
        [WorldSpan((A, C), 3, hung=True)],
        [WorldSpan((A, B), 5000), WorldSpan((A, C), 3)],
        [WorldSpan((A, B), 5000), WorldSpan((A, C), 4000, hung=True)],
        [WorldSpan((A, B), 5000), WorldSpan((A, B), 3, hung=True)],
        [WorldSpan((A, B), 5000), WorldSpan((A,), 3, hung=True)],
        [WorldSpan((A, B), 2), WorldSpan((A, C), 3, hung=True)],
    ],
    ids=["nothing", "first world", "no hang", "proven", "same nodes", "fewer", "unproven before"],
)  # fmt: skip
def test_nobody_is_evicted_for_what_was_there_before(worlds: list[WorldSpan]) -> None:
    assert after_hang(worlds) == ((), "")


def test_of_several_newcomers_the_one_that_did_not_arrive_goes_else_all() -> None:
    worlds = [WorldSpan((A, B), 5000), WorldSpan((A, C, D), 0, hung=True)]
    assert after_hang(worlds, named=D)[0] == (D,)
    assert after_hang(worlds, named=A)[0] == (C, D)
    # A newcomer that hangs the job again and again is still one.
    assert after_hang([*worlds, WorldSpan((A, C, D), 0, hung=True)])[0] == (C, D)


def test_a_renamed_old_node_is_no_newcomer() -> None:
    renamed = node_of("host-z", B.parts)
    worlds = [WorldSpan((A, B), 5000), WorldSpan((A, renamed), 3, hung=True)]
    assert after_hang(worlds) == ((), "")


def test_the_three_nodes_that_cause_half_of_all_failures_are_spares() -> None:
    nodes = [node(f"{number:02}") for number in range(63)]
    bad = [nodes[5], nodes[20], nodes[41]]
    events = []
    for number, who in enumerate(nodes):
        events += [of(who, "probed", HOUR), of(who, "joined", 30 * DAY)]
        count = 7 if who in bad else number % 3 == 0
        events += [of(who, "failed", (1 + k) * DAY, cause="x") for k in range(count)]
    ledger = in_order(*events)
    assert set(by_reliability(nodes, ledger, NOW)[60:]) == set(bad)
    probed = {n for n in nodes if admit(n, ledger, NOW).verdict == "probe"}
    assert probed == set(bad), "only they must pass a probe again"


def test_cordoned_nodes_are_left_out_even_if_too_few_are_left() -> None:
    events = [of(A, "cordoned", DAY, reason="why"), of(B, "probed", HOUR)]
    assert by_reliability([A, B], events, NOW) == [B]


def test_failures_fade() -> None:
    def rate(ago: float) -> float:
        return failures_per_day(A, [of(A, "failed", ago, cause="x")], NOW)

    rates = [rate(days * DAY) for days in (0, 10, 30, 90, 900)]
    assert all(later < sooner for sooner, later in pairwise(rates))
    assert rates[-1] == pytest.approx(failures_per_day(A, [], NOW), rel=1e-3)


def test_use_without_failure_is_to_a_nodes_credit() -> None:
    used = [of(A, "joined", 20 * DAY), of(A, "left", DAY)]
    assert failures_per_day(A, used, NOW) < failures_per_day(B, used, NOW)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.sampled_from(["probed", "joined", "left", "failed", "corrected", "cordoned"]),
            st.floats(0, 400),
        ),
        max_size=30,
    ),
    st.integers(0, 5),
)
def test_every_node_has_one_role(seen: list[tuple[str, str, float]], needed: int) -> None:
    nodes = [A, B, C, D]
    events = in_order(*(of(node(n), kind, days * DAY, count=1) for n, kind, days in seen))
    ranked = by_reliability(nodes, events, NOW)
    refused = [n for n in nodes if admit(n, events, NOW).verdict == "refuse"]
    assert sorted(n.host for n in (*ranked, *refused)) == [n.host for n in nodes]
    train, spare = ranked[:needed], ranked[needed:]
    worst = max((failures_per_day(n, events, NOW) for n in train), default=0.0)
    assert all(failures_per_day(n, events, NOW) >= worst for n in spare)


def test_a_node_that_fails_often_is_probed_before_every_use_and_only_once() -> None:
    often = [of(A, "failed", days * DAY) for days in (9, 8, 7, 6, 5, 4)]
    assert admit(A, [*often, of(A, "probed", HOUR)], NOW).verdict == "probe"
    assert admit(A, [*often, of(A, "probed", 60.0)], NOW).verdict == "take"
