import math
import time

import torch

from longhaul.train.pulse import EVERY_STEPS, Pulse


def pulse() -> Pulse:
    return Pulse(torch.device("cpu"), [])


def test_seconds_of_eight_steps_are_told_at_once() -> None:
    own, told = pulse(), None
    for step in range(1, EVERY_STEPS + 1):
        own.clock = iter((10.0 * step, 11.0 * step)).__next__
        with own.computing():
            pass
        told = own.reach(step)
        assert (told is None) == (step < EVERY_STEPS)
    assert told is not None
    assert list(own.sent_at(EVERY_STEPS)) == list(range(1, EVERY_STEPS + 1))
    assert told.tolist() == list(own.sent_at(EVERY_STEPS))


def test_a_second_of_waiting_is_none_of_computing() -> None:
    own = pulse()
    with own.computing():
        time.sleep(1.0)
    told = own.reach(EVERY_STEPS)
    assert told is not None
    assert told[-1] < 0.5


def test_steps_made_again_after_a_rollback_are_told_as_they_were_made_last() -> None:
    own = pulse()
    for step in (1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 7, 8):
        with own.computing():
            pass
        told = own.reach(step)
    assert told is not None
    assert not told.isnan().any()
    assert not own._times


def test_what_was_never_measured_is_not_a_number() -> None:
    own = pulse()
    with own.computing():
        pass
    told = own.reach(16)  # a start in the middle
    assert told is not None
    assert [math.isnan(seconds) for seconds in told.tolist()] == [True] * 7 + [False]
