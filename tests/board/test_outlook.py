import math
import random

from longhaul.board.outlook import outlook, reach


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


def law(step, noise=0.0):
    return 1.8 + 9.0 * step**-0.4 + noise * random.gauss(0, 1)


def test_a_power_law_is_met_where_it_is():
    steps = range(500, 10_000, 50)
    found = reach(steps, [law(step) for step in steps], law(30_000))
    assert found is not None
    assert math.isclose(found.step, 30_000, rel_tol=0.05)
    assert found.low <= found.step <= (found.high or math.inf)


def test_noise_widens_the_range_around_the_truth():
    random.seed(1)
    steps = range(500, 10_000, 50)
    found = reach(steps, [law(step, 0.01) for step in steps], law(15_000))
    assert found is not None
    assert found.low < 15_000 < (found.high or math.inf)
    assert found.low < found.step


def test_what_lies_below_the_floor_or_ahead_of_a_loss_that_rises_is_not_promised():
    steps = range(500, 10_000, 50)
    assert reach(steps, [law(step) for step in steps], 1.0) is None
    assert reach(steps, [2.0 + step / 1e5 for step in steps], 1.9) is None
    assert reach(steps, [2.0 for _ in steps], 1.9) is None
    assert reach([1, 2], [2.0, 1.9], 1.8) is None
