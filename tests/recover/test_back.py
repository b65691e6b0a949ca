from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.recover import RecoverSection
from longhaul.core.records import Safe
from longhaul.recover.remedies import batch_to_skip, range_to_skip, safe_before


def test_a_rollback_keeps_its_margin_where_it_can(make):
    good = make.safe(0, 10, 20, 30, 39)
    assert safe_before(good, 40, 15).step == 20
    assert safe_before(good, 40, 0).step == 39
    assert safe_before(good, 40, 100).step == 0
    assert safe_before(make.safe(30, 35), 40, 100).step == 30
    assert safe_before(make.safe(40, 50), 40, 0) is None


def test_of_two_states_of_a_step_the_one_in_memory_is_taken():
    both = (Safe(10, 80, "memory"), Safe(10, 80, "disk"))
    assert safe_before(both, 40, 0).where == "memory"


def test_what_must_be_fetched_is_gone_back_to_only_where_nothing_else_lies_before():
    here, far = Safe(10, 80, "disk"), Safe(30, 240, "remote")
    assert safe_before((here, far), 40, 0) == here
    assert safe_before((far,), 40, 0) == far
    assert safe_before((Safe(50, 400, "memory"), far), 40, 0) == far


@settings(max_examples=60, deadline=None)
@given(
    steps=st.sets(st.integers(0, 99), min_size=1, max_size=8),
    first=st.integers(1, 100),
    margin=st.integers(0, 60),
)
def test_never_to_a_state_at_or_after_the_first_sign(make, steps, first, margin):
    to = safe_before(make.safe(*steps), first, margin)
    assert (to is None) == (min(steps) >= first)
    assert to is None or to.step < first


def test_palms_range_begins_before_the_spike_and_ends_after_it(make):
    situation = make.situation(310)
    sign = make.finding("loss-spike", 310, 300)
    begin, end = range_to_skip(situation, sign, make.safe(280)[0])
    assert end - begin == 40 * make.blocks
    assert begin == sign.first_draw - 10 * make.blocks


def test_a_single_batch_is_passed_over_with_the_one_before(make):
    sign = make.finding("loss-spike", 310, 300)
    assert batch_to_skip(make.situation(310), sign, make.safe(280)[0]) == (
        sign.first_draw - make.blocks,
        sign.first_draw + make.blocks,
    )


def test_a_share_that_is_nearly_spent_makes_the_range_shorter_and_then_none(make):
    sign, to = make.finding("loss-spike", 310, 300), make.safe(280)[0]
    for share, steps in ((0.02, 20), (0.011, 11), (0.01, None)):
        situation = make.under(make.situation(310), RecoverSection(max_skipped_share=share))
        skip = range_to_skip(situation, sign, to)
        assert skip is None if steps is None else skip[1] - skip[0] == steps * make.blocks
