"""Two clusters side by side."""

from dataclasses import replace

import pytest

from longhaul.cluster.qualify.comparison import compare, goodput
from longhaul.cluster.qualify.outcome import NodeOutcome, Outcome
from longhaul.cluster.qualify.records import Check


def cluster(slowest: float, **more: object) -> Outcome:
    nodes = tuple(
        NodeOutcome(host=name, parts=(f"board:{name}",), hardware="H100", devices=8,
                    slowest=slowest, fit=True)
        for name in "ab"
    )  # fmt: skip
    return replace(Outcome(time=0.0, quick=False, ranks=16, checks=(), nodes=nodes), **more)  # type: ignore[arg-type]


def row(title: str, *outcomes: Outcome, prices: tuple[float, ...] = ()) -> tuple[str, ...]:
    return next(each.cells for each in compare(outcomes, prices) if each.title == title)


def test_a_dollar_buys_usable_flops() -> None:
    cheap, dear = cluster(600e12), cluster(600e12)
    # 600e12 FLOP/s for an hour at 2 dollars: 1.08 EFLOP for a dollar.
    cells = row("usable EFLOP for a dollar", cheap, dear, prices=(2.0, 3.0))
    assert cells == ("1.08", "0.72")


def test_one_slow_device_holds_up_all_and_an_unfit_node_is_paid_for() -> None:
    whole = cluster(600e12)
    slow = replace(whole.nodes[1], slowest=300e12)
    assert replace(whole, nodes=(whole.nodes[0], slow)).usable == 16 * 300e12
    unfit = replace(whole.nodes[1], fit=False)
    half = replace(whole, nodes=(whole.nodes[0], unfit))
    assert half.usable == 8 * 600e12
    assert row("usable EFLOP for a dollar", whole, half, prices=(2.0, 2.0)) == ("1.08", "0.54")


def test_goodput_falls_with_failures_and_slow_saves() -> None:
    steady = goodput(cluster(1.0, save_s=30.0, failures_per_day=0.1))
    flaky = goodput(cluster(1.0, save_s=30.0, failures_per_day=5.0))
    slow = goodput(cluster(1.0, save_s=600.0, failures_per_day=5.0))
    assert steady is not None
    assert flaky is not None
    assert slow is not None
    assert 1.0 > steady.share > flaky.share > slow.share > 0.0
    assert steady.basis == "failures of the ledger"
    assumed = goodput(cluster(1.0, save_s=30.0))
    assert assumed is not None
    assert assumed.basis == "failures assumed"
    assert goodput(cluster(1.0)) is None


def test_goodput_at_a_worked_example() -> None:
    # A save of 50 s, a failure each 100,000 s: Daly's interval is 3,129 s.
    found = goodput(cluster(1.0, save_s=50.0, failures_per_day=0.864))
    assert found is not None
    assert found.share == pytest.approx((1 - 50 / 3179) * (1 - (3129 / 2 + 300) / 100_000), 1e-3)


def test_the_weakest_part_and_the_provider() -> None:
    check = Check(group="links", name="pair rate", node="b", verdict="fail", reason="b is slow")
    bad = cluster(1.0, checks=(check,), response_s=(3600.0, 7200.0, 90_000.0))
    assert "b is slow" in row("weakest part", bad)[0]
    assert "median 2 h 00 min, longest 25 h 00 min, of 3" in row("provider's response", bad)[0]
    assert "nothing failed" in row("weakest part", cluster(1.0))[0]
