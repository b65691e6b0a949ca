import math

import pytest

from longhaul.core.units import (
    bits_per_byte,
    loss_in_words,
    short_bytes,
    short_count,
    short_seconds,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (9_999, "9,999"), (12_345, "12.3k"), (1_234_567, "1.23M"),
     (124_475_904, "124M"), (1.75e11, "175B"), (1.5e13, "15T")],
)  # fmt: skip
def test_counts_read_as_people_write_them(value: float, text: str) -> None:
    assert short_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.05, "0.1 s"), (59.94, "59.9 s"), (61, "1 min 01 s"), (3725, "1 h 02 min")],
)
def test_durations_read_as_people_say_them(value: float, text: str) -> None:
    assert short_seconds(value) == text


def test_sizes_are_decimal_as_disks_are_sold() -> None:
    assert short_bytes(3_355_443) == "3.36 MB"


def test_a_model_that_halves_each_bit_has_one_bit_per_byte_less() -> None:
    assert bits_per_byte(8 * math.log(2) * 100, 100) == pytest.approx(8)
    assert math.isnan(bits_per_byte(1.0, 0))


def test_a_loss_names_bits_per_byte_only_where_bytes_are_known():
    assert loss_in_words(2.0, 1.5) == "2.0000 nats, 1.5000 bits per byte"
    assert loss_in_words(2.0, None) == loss_in_words(2.0, math.nan) == "2.0000 nats"
