import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeClock
from longhaul.store.transfers import Calls, Deadline, Patience, StoreError


@pytest.fixture
def released():
    """An event that a hanging call waits for; set at the end, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()


def test_a_call_gives_its_result_or_its_own_error() -> None:
    calls = Calls()
    assert calls.within(5.0, "two", lambda: 2) == 2
    with pytest.raises(KeyError, match="inner"):
        calls.within(5.0, "fails", lambda: {}["inner"])


def test_a_hanging_call_is_left_behind_by_name(released: threading.Event) -> None:
    with pytest.raises(StoreError, match=r"s3://b/x: no answer within 0\.0 s"):
        Calls().within(0.01, "s3://b/x", released.wait)


def test_hanging_calls_do_not_pile_up(released: threading.Event) -> None:
    calls = Calls()
    begun: list[None] = []

    def hang() -> None:
        begun.append(None)
        released.wait()

    for _ in range(30):
        with pytest.raises(StoreError):
            calls.within(0.001, "x", hang)
    assert len(begun) <= 8
    released.set()
    for thread in threading.enumerate():
        if thread.name == "store: x":
            thread.join(5)
    assert calls.within(5.0, "x", lambda: "again") == "again"


def test_a_file_may_keep_the_store_busy_for_its_time_and_no_longer() -> None:
    clock = FakeClock()
    deadline = Deadline(Calls(), 10.0, "file", clock)
    deadline.call(lambda: clock.advance(9.0))
    clock.advance(100.0)  # a rest that the pace asks for
    deadline.call(lambda: clock.advance(2.0))
    with pytest.raises(StoreError, match=r"file: not done within 10\.0 s"):
        deadline.call(lambda: None)


def test_a_large_file_is_given_longer() -> None:
    patience = Patience(answer_s=60, slowest_bytes_per_s=1e6)
    assert patience.deadline_s(0) == 60
    assert patience.deadline_s(10**9) == 1060


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_pauses_grow_to_a_limit(failures: int, chance: float) -> None:
    patience = Patience(first_pause_s=2.0, longest_pause_s=300.0)
    pause = patience.pause_s(failures, lambda: chance)
    assert 1.5 <= pause <= 375
    assert patience.pause_s(failures + 1, lambda: chance) >= pause
    assert patience.pause_s(1, lambda: 0.5) == 2.0
    assert patience.pause_s(3, lambda: 0.5) == 8.0
