import math

from longhaul.board.outlook import outlook


def test_an_even_pace_leaves_no_doubt():
    found = outlook([2.0 * at for at in range(101)], list(range(101)), 600)
    assert found is not None
    assert (found.left_s, found.low_s, found.high_s) == (1000.0, 1000.0, 1000.0)


def test_evaluations_and_rollbacks_count_as_time():
    times, steps, now = [], [], 0.0
    for step in [*range(1, 101), *range(51, 151)]:
        now += 1.0 + 10.0 * (step % 50 == 0)
        times.append(now)
        steps.append(step)
    found = outlook(times, steps, 250)
    assert found is not None
    assert math.isclose(found.left_s, 100 * (times[-1] - times[0]) / 149)
    assert found.low_s < found.left_s <= found.high_s


def test_nothing_is_said_of_few_steps_of_a_run_that_is_done_or_one_that_fell_back():
    assert outlook([], [], 100) is None
    assert outlook([1.0, 2.0], [1, 2], 100) is None
    assert outlook([float(at) for at in range(50)], list(range(50)), 49) is None
    assert outlook([float(at) for at in range(20)], [30] * 10 + list(range(10)), 100) is None
    assert outlook([5.0] * 20, list(range(20)), 100) is not None
