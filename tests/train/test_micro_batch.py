import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.errors import NeedsPerson
from longhaul.train.micro_batch import (
    Budget,
    candidates,
    find_micro_sequences,
    fixed_and_per_sequence,
)

stages = st.lists(st.integers(1, 720), min_size=1, max_size=3)
counts_of_bytes = st.integers(0, 10**6)


def budget(limit, tried_out=False):
    return Budget(limit, "a test's", tried_out)


@given(stages)
def test_candidates_are_all_common_divisors_falling(sizes):
    expected = [n for n in range(min(sizes), 0, -1) if all(size % n == 0 for size in sizes)]
    assert candidates(sizes) == expected


@given(counts_of_bytes, counts_of_bytes)
def test_the_line_is_nowhere_below_what_was_measured(one, two):
    fixed, per_sequence = fixed_and_per_sequence(one, two)
    assert fixed + per_sequence >= one
    assert fixed + 2 * per_sequence >= two
    assert fixed >= 0


@settings(max_examples=200)
@given(stages, counts_of_bytes, st.integers(1, 10**5), st.integers(0, 10**8), st.booleans())
def test_the_largest_that_fits_is_found_and_nothing_else(sizes, fixed, each, limit, tried_out):
    fitting = [n for n in candidates(sizes) if fixed + n * each <= limit]

    def measure(sequences):
        return fixed + sequences * each

    if not fitting:
        with pytest.raises(NeedsPerson):
            find_micro_sequences(sizes, measure, budget(limit, tried_out))
    else:
        found = find_micro_sequences(sizes, measure, budget(limit, tried_out))
        assert found.sequences == fitting[0]


@settings(max_examples=200)
@given(stages, st.integers(0), st.data())
def test_whatever_is_measured_a_choice_divides_every_stage_and_is_tried_out(sizes, limit, data):
    seen = {}

    def measure(sequences):
        if sequences not in seen:
            seen[sequences] = data.draw(st.none() | counts_of_bytes)
        return seen[sequences]

    try:
        found = find_micro_sequences(sizes, measure, budget(limit, tried_out=True))
    except NeedsPerson:
        assert seen[1] is None or seen[1] > limit
        return
    assert all(size % found.sequences == 0 for size in sizes)
    taken = seen[found.sequences]
    assert taken is not None
    assert taken <= limit


def test_a_device_that_runs_out_after_all_gets_the_next_smaller_divisor():
    tried = []

    def measure(sequences):
        tried.append(sequences)
        return None if sequences > 3 else 100 * sequences

    assert find_micro_sequences([12], measure, budget(10_000, tried_out=True)).sequences == 3
    assert tried == [1, 2, 12, 6, 4, 3]


def test_what_cannot_be_measured_is_not_risked():
    assert find_micro_sequences([8], lambda n: 0, budget(10)).sequences == 1


def test_a_second_sequence_that_seems_to_take_nothing_is_not_believed():
    assert find_micro_sequences([8], lambda n: 100, budget(450)).sequences == 4


def test_nothing_that_fits_is_told_with_figures_and_the_way_out():
    with pytest.raises(NeedsPerson) as told:
        find_micro_sequences([8], lambda n: 3_000_000, budget(2_000_000))
    for part in ("one sequence takes 3 MB", "2 MB, a test's", "batch.micro_sequences=1"):
        assert part in str(told.value)
    with pytest.raises(NeedsPerson, match="more than the device has"):
        find_micro_sequences([8], lambda n: None, budget(2_000_000))


def test_the_reason_names_what_was_measured():
    reason = find_micro_sequences([8], lambda n: 10_000 + 1000 * n, budget(15_000)).reason
    for part in ("10 kB + 1 kB a sequence", "14 kB of 15 kB"):
        assert part in reason
