import pytest

from longhaul.plan.bill import bill, goodput, spares, weakest
from longhaul.store.save_interval import PRIOR_S


def lines(**changed):
    given = {
        "step_s": 10.0, "steps": 1000, "gpus": 1024, "node_devices": 8, "power_w": 400.0,
        "price": 2.0, "checkpoint_bytes": 10**12, "step_basis": "assumed",
    }  # fmt: skip
    return {one.name: one for one in bill(**(given | changed))}


def test_hours_money_and_energy_follow_from_time():
    made = lines()
    wall = made["wall time"].value
    assert wall == pytest.approx(1000 * 10 / 86400 / made["goodput"].value)
    assert made["GPU-hours"].value == pytest.approx(wall * 24 * 1024)
    assert made["money"].value == pytest.approx(2 * made["GPU-hours"].value)
    assert made["energy"].value == pytest.approx(made["GPU-hours"].value * 600 / 1e6)
    assert made["failures expected"].value == pytest.approx(wall * 86400 * 1024 / PRIOR_S)


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
    assert spares(0.8 * day, 1024, 8) == 3  # one node missing on average: P(≤ 3) = 98 %
    assert spares(0.08 * day, 1024, 8) == 15  # ten: P(≤ 15) = 95.1 %
    assert spares(60, 8, 8) == 0  # one node has nothing to be spare beside
