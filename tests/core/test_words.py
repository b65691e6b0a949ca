import math

from longhaul.core.units import count, elapsed, figure, moment, price_words, sentence


def test_figures_read_well_and_survive_what_is_not_finite():
    assert [figure(v) for v in (None, 12000.0, 3.14159, math.nan, math.inf, -math.inf)] == [
        "–", "12,000", "3.142", "not a number", "+∞", "−∞",
    ]  # fmt: skip


def test_times_are_told_from_the_start_of_the_run():
    assert elapsed(3725) == "+1 h 02 min"
    assert elapsed(3 * 86400 + 4 * 3600) == "+3 d 04 h"
    assert moment(0) == "1 Jan 1970, 00:00"


def test_prices_become_phrases():
    price = {
        "blocks_skipped": 0,
        "steps_lost": 1200.0,
        "seconds_lost": 90.0,
        "progress_lost_share": 0.3,
        "x": math.inf,
    }
    assert price_words(price) == [
        "1,200 steps lost", "1 min 30 s lost", "progress lost: 30.0%", "x: +∞",
    ]  # fmt: skip


def test_a_sentence_is_one_line_with_a_stop():
    assert sentence(" the loss\n rose ") == "The loss rose."
    assert sentence("really?") == "Really?"
    assert sentence("") == ""
    assert (count(1, "step"), count(2000, "step")) == ("1 step", "2,000 steps")
