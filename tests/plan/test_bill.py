import pytest

from longhaul.core.devices import device_named
from longhaul.plan.bill import bill, failures_of, goodput, spares, weakest
from longhaul.plan.failure_rates import LLAMA_3_405B, OPT_175B


def lines(**changed):
    given = {
        "step_s": 10.0, "steps": 100_000, "gpus": 1024, "node_devices": 8, "power_w": 400.0,
        "price": 2.0, "checkpoint_bytes": 10**12, "step_basis": "assumed",
        "failures": OPT_175B, "failures_basis": "published",
    }  # fmt: skip
    return {one.name: one for one in bill(**(given | changed))}


def test_hours_money_and_energy_follow_from_time():
    made = lines()
    wall = made["wall time"].value
    assert made["wall time"].unit == "days"
    assert wall == pytest.approx(100_000 * 10 / 86400 / made["goodput"].value)
    assert made["GPU-hours"].value == pytest.approx(wall * 24 * 1024)
    assert made["money"].value == pytest.approx(2 * made["GPU-hours"].value)
    assert made["energy"].value == pytest.approx(made["GPU-hours"].value * 600 / 1e6)
    assert made["failures expected"].value == pytest.approx(OPT_175B.expected(1024, wall))


def test_failures_are_those_of_a_published_run_on_such_a_device():
    assert failures_of(device_named("a100")) == (OPT_175B, "published")
    assert failures_of(device_named("h100")) == (LLAMA_3_405B, "published")
    assert failures_of(device_named("4090")) == (LLAMA_3_405B, "assumed")
    made = lines(failures=LLAMA_3_405B)
    of_gpus, of_all = made["  faulty GPU"].value, made["failures expected"].value
    assert of_gpus / of_all == pytest.approx(148 / 419)
    assert made["spare nodes"].value < lines()["spare nodes"].value


def test_a_short_run_is_told_in_hours():
    made = lines(steps=1000)["training without failures"]
    assert (made.value, made.unit) == (pytest.approx(10_000 / 3600), "h")


def test_without_an_end_or_a_price_nothing_is_made_up():
    assert "wall time" not in lines(steps=None)
    assert "money" not in lines(price=None)
    assert "energy" not in lines(power_w=None)


def test_every_line_says_whence_it_is():
    assert {one.basis for one in lines().values()} <= {"measured", "published", "assumed"}
    assert lines(step_basis="measured")["step time"].basis == "measured"
    assert lines(step_basis="measured")["wall time"].basis == "assumed"
    assert weakest("measured", "assumed", "published") == "assumed"


def test_goodput_falls_with_failures_and_slow_recovery():
    assert goodput(1e9, 1e5) > 0.999
    assert goodput(1e5, 1000) > goodput(1e4, 1000)
    assert goodput(1e4, 1000, recovery_s=0) > goodput(1e4, 1000)
    assert goodput(1000, 0, recovery_s=1000) < 0.5


def test_spares_follow_poisson():
    day = 86_400.0
    assert spares(1e12, 1024, 8) == 0
    assert spares(day, 1024, 8) == 3  # one node missing on average: P(≤ 3) = 98 %
    assert spares(0.1 * day, 1024, 8) == 15  # ten: P(≤ 15) = 95.1 %
    assert spares(60, 8, 8) == 0  # one node has nothing to be spare beside
