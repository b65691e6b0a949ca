"""Verdicts follow from records alone: each fault is named, and noise is not."""

import math
from dataclasses import replace

import pytest

from longhaul.cluster.qualify.comparing import Limits, figure, history, neighbours
from longhaul.cluster.qualify.judge_devices import judge_devices
from longhaul.cluster.qualify.judge_nodes import judge_hosts, judge_storage, skew
from longhaul.cluster.qualify.records import (
    Check,
    Measurement,
    Report,
    groups_named,
    report_of,
    worst,
)
from longhaul.core.errors import UsageError

LIMITS = Limits(warn=0.95, fail=0.85)


def of(name: str, value: float | None = 1.0, **more: object) -> Measurement:
    known = {"group": "compute", "device": "cuda:0", "unit": "FLOP/s", "facts": {"format": "bf16"}}
    return Measurement(**({"name": name, "value": value} | known | more))  # type: ignore[arg-type]


def node(host: str, *measured: Measurement, rank: int = 0, hardware: str = "some GPU") -> Report:
    return Report(rank=rank, host=host, parts=(f"board:{host}",), hardware=hardware, time=0.0,
                  measurements=measured)  # fmt: skip


def only(checks: list[Check], verdict: str) -> list[tuple[str, str]]:
    return [(check.node, check.name) for check in checks if check.verdict == verdict]


def test_an_unknown_device_alone_is_not_judged_by_a_made_up_peak() -> None:
    (check,) = judge_devices([node("a", of("product bf16"))], {})
    assert check.verdict == "not applicable"
    assert "nothing to compare with" in check.reason


def test_a_known_device_is_judged_by_the_table_and_its_source_is_named() -> None:
    report = node("a", of("product bf16", 400e12), hardware="NVIDIA H100 80GB HBM3")
    (check,) = judge_devices([report], {})
    assert check.verdict == "fail"
    assert "MAMF" in check.source
    good = node("a", of("product bf16", 700e12), hardware="NVIDIA H100 80GB HBM3")
    assert [c.verdict for c in judge_devices([good], {})] == ["pass"]


def test_of_many_nodes_the_slow_one_is_named() -> None:
    reports = [node(name, of("product bf16", 100.0 + place)) for place, name in enumerate("abcde")]
    reports.append(node("slow", of("product bf16", 70.0)))
    assert only(list(judge_devices(reports, {})), "fail") == [("slow", "product bf16")]


def test_of_two_devices_only_the_worse_is_suspected() -> None:
    reports = [node("a", of("product bf16", 100.0)), node("b", of("product bf16", 50.0))]
    assert only(list(judge_devices(reports, {})), "fail") == [("b", "product bf16")]


def test_devices_of_other_hardware_are_no_neighbours() -> None:
    fast = node("a", of("product bf16", 100.0), hardware="x")
    slow = node("b", of("product bf16", 10.0), hardware="y")
    assert not only(list(judge_devices([fast, slow], {})), "fail")


def test_its_own_history_finds_a_machine_that_has_become_slower() -> None:
    past = {"a": {"product bf16@cuda:0": [100.0, 101.0, 99.0]}}
    slow = list(judge_devices([node("a", of("product bf16", 60.0))], past))
    assert only(slow, "fail") == [("a", "product bf16")]
    assert "the node ledger" in slow[0].source
    assert not only(list(judge_devices([node("a", of("product bf16", 97.0))], past)), "fail")


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
def test_a_short_history_says_nothing(values: list[float]) -> None:
    assert history(values, LIMITS) is None


def test_a_figure_that_has_always_varied_may_vary() -> None:
    noisy = history([100.0, 40.0, 90.0, 30.0, 80.0], LIMITS)
    assert noisy is None or noisy.verdict(35.0) == "pass"
    steady = history([100.0, 100.0, 100.0, 100.0], LIMITS)
    assert steady is not None
    assert steady.verdict(84.0) == "fail"


def test_times_are_better_when_lower() -> None:
    limits = Limits(0.2, 0.2, lower_is_better=True)
    usual = neighbours(1.0, [1.0, 1.0], limits)
    assert usual is not None
    assert usual.verdict(4.0) == "pass"
    assert usual.verdict(6.0) == "fail"
    assert usual.verdict(0.0) == "pass"
    assert usual.verdict(math.inf) == "fail"


def test_throttling_under_load_is_named_with_what_the_driver_says() -> None:
    hot = of("sustained", 0.6, unit="share", facts={"driver": "heat (hardware)"})
    (check,) = judge_devices([node("a", hot)], {})
    assert check.verdict == "fail"
    assert "heat (hardware)" in check.reason


def test_a_core_that_is_never_free_has_a_busy_neighbour() -> None:
    busy = of("core time", 0.05, unit="share", device="core 1")
    (check,) = judge_devices([node("a", busy)], {})
    assert (check.verdict, check.device) == ("fail", "core 1")
    assert [c.verdict for c in judge_devices([node("a", replace(busy, value=0.4))], {})] == ["pass"]


def test_other_bits_than_most_devices_give_are_named() -> None:
    reports = [node(n, of("same bits", None, facts={"digest": "x"}), rank=r)
               for r, n in enumerate("abc")]  # fmt: skip
    reports.append(node("d", of("same bits", None, facts={"digest": "y"}), rank=3))
    assert only(list(judge_devices(reports, {})), "fail") == [("d", "same bits")]


def test_two_devices_that_differ_are_not_told_apart() -> None:
    reports = [node(n, of("same bits", None, facts={"digest": n})) for n in "ab"]
    assert not only(list(judge_devices(reports, {})), "fail")


def test_corrected_errors_warn_and_lost_memory_fails() -> None:
    corrected = of("ecc", 3.0, group="memory", device="")
    lost = replace(corrected, wrong="memory was lost 1 times")
    assert [c.verdict for c in judge_devices([node("a", corrected)], {})] == ["warn"]
    assert [c.verdict for c in judge_devices([node("a", lost)], {})] == ["fail"]


def test_a_slow_fsync_fails_and_a_fast_one_beside_a_faster_passes() -> None:
    def disk(value: float) -> Measurement:
        return of("fsync", value, group="storage", unit="s", device="/x", facts={})

    slow = list(judge_storage([node("a", disk(0.3))], {}))
    assert [c.verdict for c in slow] == ["fail"]
    pair = [node("a", disk(0.0001)), node("b", disk(0.009))]
    assert not only(list(judge_storage(pair, {})), "fail")


def test_a_medium_that_nobody_waits_for_is_not_compared() -> None:
    def files(value: float) -> Measurement:
        return of("small files", value, group="storage", unit="files/s", device="/x", facts={})

    ample = [node("a", files(1_000.0)), node("b", files(50_000.0))]
    assert not only(list(judge_storage(ample, {})), "fail")
    scarce = [node("a", files(300.0)), node("b", files(50_000.0))]
    assert only(list(judge_storage(scarce, {})), "fail") == [("a", "small files")]


def test_what_was_refused_fails_with_its_reason() -> None:
    full = of("write", None, group="storage", unit="B/s", device="/x", wrong="No space left")
    (check,) = judge_storage([node("a", full)], {})
    assert (check.verdict, check.reason) == ("fail", "No space left")
    assert check.remedy


def versions(host: str, **facts: object) -> Report:
    return node(host, of("versions", None, group="host", device="", facts=facts))


def test_the_node_with_another_version_is_named() -> None:
    reports = [versions("a", driver="580"), versions("b", driver="580"), versions("c", driver="5")]
    found = list(skew(reports))
    assert only(found, "fail") == [("c", "version of driver")]
    assert "c has driver 5; 2 of 3 nodes have 580" in found[0].reason


def test_of_two_nodes_that_differ_both_are_named() -> None:
    found = list(skew([versions("a", driver="580"), versions("b", driver="5")]))
    assert {node for node, _ in only(found, "fail")} == {"a", "b"}


def test_a_fact_that_is_missing_on_one_node_is_a_difference() -> None:
    found = list(skew([versions("a", x="1"), versions("b", x="1"), versions("c")]))
    assert only(found, "fail") == [("c", "version of x")]


@pytest.mark.parametrize(
    ("offset", "verdict"), [(0.05, "pass"), (0.5, "warn"), (1.5, "fail"), (0.0, "pass")]
)
def test_clocks_out_of_step(offset: float, verdict: str) -> None:
    clock = of("clock", offset, group="host", unit="s", device="", facts={"uncertain_s": 0.001})
    assert [c.verdict for c in judge_hosts([node("a", clock)], {})] == [verdict]


def test_a_report_comes_back_as_it_was_written() -> None:
    report = node("a", of("product bf16"), of("ecc", None, skipped="none here"))
    assert report_of(report.as_json()) == report
    with pytest.raises(UsageError, match="format"):
        report_of({"format": 99})


def test_groups() -> None:
    assert groups_named("host, storage") == ("storage", "host")
    assert len(groups_named("")) == 5
    with pytest.raises(UsageError, match="disks"):
        groups_named("disks")
    assert worst([]) == "not applicable"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2e12, "FLOP/s", "2 TFLOP/s"), (3e-5, "s", "30 µs"), (0.2, "s", "200 ms"),
     (None, "s", "–"), (0.5, "share", "50%"), (12, "files", "12 files")],
)  # fmt: skip
def test_figures_with_units(value: float | None, unit: str, text: str) -> None:
    assert figure(value, unit) == text
