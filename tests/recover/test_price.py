import pytest

from longhaul.config.recover import RecoverSection
from longhaul.core.records import Safe
from longhaul.recover.draft import cost_of_rate, price_of
from longhaul.recover.learning_rate import Rates
from longhaul.recover.plan import sizes_of
from longhaul.recover.remedies import Remedy

LIMITS = RecoverSection()


def price(make, remedy, for_good=False):
    return price_of(make.situation(500), remedy, for_good=for_good)


def test_half_the_rate_for_good_loses_30_percent_as_yalm_measured(make):
    assert price(make, Remedy((), settings={"optim.lr": 5e-4}), True)["steps_lost_later"] == 150


def test_a_rate_that_is_raised_again_costs_only_the_way_up(make):
    later = price(make, Remedy((), settings={"optim.lr": 5e-4}))["steps_lost_later"]
    # 50 steps at half the rate lose 30 %, 50 at 0.7 of it 16 %, and then all is as before.
    assert later == pytest.approx(50 * 0.3 + 50 * (1 - 0.7**0.5), abs=0.2)


def test_steps_to_make_again_are_counted_in_time_too(make):
    found = price(make, Remedy((), rollback=Safe(440, 440 * 8, "memory"), skip=(3520, 3600)))
    assert (found["steps_lost"], found["seconds_lost"], found["blocks_skipped"]) == (60, 30.0, 80)


def test_no_price_goes_beyond_the_end_of_the_run():
    known = Rates(1e-3, 1e-3, 1e-3, 1e-5)
    assert cost_of_rate(1e-5, known, 1.4, 1000, 10) < 10
    assert cost_of_rate(1e-3, known, 1.4, 1000, 10) == 0


def test_lengths_follow_the_run_unless_they_are_given():
    long, short = sizes_of(LIMITS, 500_000), sizes_of(LIMITS, 300)
    assert (long.margin, long.skip) == (100, 300)  # PaLM
    assert (short.margin, short.skip) == (6, 12)
    assert sizes_of(RecoverSection(skip_steps=7), 300).skip == 7
    assert sizes_of(LIMITS, None) == long
