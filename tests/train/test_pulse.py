import math
import time

import torch

from longhaul.train.pulse import EVERY_STEPS, Pulse


def pulse() -> Pulse:
    return Pulse(torch.device("cpu"), [])


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_seconds_of_eight_steps_are_told_at_once_and_waiting_is_none_of_them() -> None:
    own = pulse()
    told = None
    for step in range(1, EVERY_STEPS + 1):
        with own.computing():
            burn(0.001 * step)
            time.sleep(0.02)  # as where others are waited for
        told = own.reach(step)
        assert (told is None) == (step < EVERY_STEPS)
    assert told is not None
    assert list(own.sent_at(EVERY_STEPS)) == list(range(1, EVERY_STEPS + 1))
    for step, seconds in enumerate(told.tolist(), start=1):
        assert 0.001 * step <= seconds < 0.001 * step + 0.015


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
