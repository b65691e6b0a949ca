import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.records import Safe
from longhaul.recover.probation import Course, course_of, good_states


def trained(make, to, *findings):
    records = {step: [make.step(step)] for step in range(1, to + 1)}
    for finding in findings:
        records[finding.step].append(finding)
    return course_of(record for lines in records.values() for record in lines)


def test_a_state_is_good_once_probation_is_over_and_not_before(make):
    assert not trained(make, 59).is_good(50, 10)
    assert trained(make, 60).is_good(50, 10)


@pytest.mark.parametrize(
    ("step", "good"), [(29, True), (30, False), (40, False), (45, False), (46, True)]
)
def test_trouble_denies_what_it_reaches_into(make, step, good):
    spike = make.finding("loss-spike", 45, 40, severity="warning")
    assert trained(make, 100, spike).is_good(step, 10) is good


def test_notices_and_findings_about_sound_weights_deny_nothing(make):
    told = make.finding("loss-spike", 45, 40, severity="notice")
    slow = make.finding("throughput-drop", 45, 40)
    assert trained(make, 100, told, slow).is_good(42, 10)


def test_the_state_before_the_first_step_is_always_good(make):
    assert trained(make, 3, make.finding("divergence", 3, 1)).is_good(0, 10)


def test_what_a_rollback_undoes_is_forgotten_and_what_lies_before_is_not(make):
    course = trained(
        make, 60, make.finding("loss-spike", 12, 11), make.finding("divergence", 60, 50)
    )
    gone_back = course.after(make.step(41))
    assert gone_back.step == 41
    assert [trouble.first_step for trouble in gone_back.troubles] == [11]
    assert gone_back.quiet_since == 12


def test_memory_comes_after_a_checkpoint_of_the_same_step(make):
    states = (Safe(20, 160, "memory"), Safe(20, 160, "disk"), Safe(10, 80, "disk"))
    good = good_states(states, trained(make, 100), 10)
    assert [(state.step, state.where) for state in good] == [
        (10, "disk"), (20, "disk"), (20, "memory"),
    ]  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 80), st.integers(0, 20)), max_size=6), st.integers(1, 20))
def test_a_good_state_has_a_probation_of_healthy_steps_after_it(make, found, probation):
    troubles = [make.finding("growth", step, max(step - age, 1)) for step, age in found]
    course = trained(make, 80, *troubles)
    for step in range(1, 81):
        if course.is_good(step, probation):
            healthy = range(step + 1, step + probation + 1)
            assert healthy.stop - 1 <= 80
            assert not any(trouble.first_step in healthy for trouble in troubles)
            assert not any(t.first_step <= step <= t.step for t in troubles)


def test_a_course_without_records_stands_at_the_beginning():
    assert Course().is_good(0, 100)
    assert Course().quiet_since == 0
