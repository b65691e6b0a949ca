"""What rank 0 and the others tell each other at a boundary, over a stand-in for the channel."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from longhaul.core.errors import ExitCode
from longhaul.core.records import Event
from longhaul.core.signals import StopRequest
from longhaul.train import coordinator
from longhaul.train.coordinator import (
    NO_REQUEST,
    Coordinator,
    Ended,
    Follower,
    RankZero,
)
from longhaul.train.orders import End, Evaluate, Order, SaveEvery, Stop
from longhaul.train.parts import Parts

RECORD = Event(kind="note", attempt=1, step=3, time=0.0)


class Channel:
    """Keeps what rank 0 says, or says what it is given."""

    def __init__(self, *said: Order | int) -> None:
        self.said: list[Any] = list(said)
        self.words = 0
        self._order: Order | None = None

    def highest(self, word: int) -> int:
        self.words += 1
        if not self.said or self.words > 99:
            return word
        said = self.said.pop(0)
        self._order = said if isinstance(said, Order) else None
        return coordinator._ORDER if self._order else int(said)

    def share(self, order: Order | None = None) -> Order | None:
        return self._order if order is None else order


@pytest.fixture
def parts_with(monkeypatch: pytest.MonkeyPatch):
    """Parts of a rank that has a channel, and nothing to compare."""
    monkeypatch.setattr(coordinator, "RankComparison", lambda parts: None)

    def make(channel: Channel) -> Parts:
        return SimpleNamespace(ranks=SimpleNamespace(control=channel))  # type: ignore[return-value]

    return make


def test_with_nothing_to_order_a_boundary_is_one_word(parts_with) -> None:
    channel, asked = Channel(), StopRequest(print)
    rank_zero = RankZero(parts_with(channel), asked)
    rank_zero.begin()
    assert channel.words == 1
    assert list(rank_zero.boundary([RECORD])) == [RECORD]
    assert (channel.words, asked.exit_code) == (2, None)


def test_orders_are_given_at_boundaries_alone(parts_with) -> None:
    rank_zero = RankZero(parts_with(Channel()), StopRequest(print))
    rank_zero.order(SaveEvery(7))
    rank_zero.begin()
    with pytest.raises(ValueError, match=r"Stop.*under way"):
        rank_zero.order(Stop())
    rank_zero.order_unless_due(Evaluate(None))  # it is due, and all evaluate by themselves
    for _ in rank_zero.boundary([RECORD]):
        assert rank_zero.at_boundary
        rank_zero.order(Stop())
    assert not rank_zero.at_boundary
    rank_zero.end()
    rank_zero.order(End(0))


def test_a_follower_carries_orders_out_in_turn_until_the_word_to_go_on(parts_with) -> None:
    done: list[Order] = []
    channel = Channel(SaveEvery(7), NO_REQUEST, Evaluate(256), Stop(), NO_REQUEST)
    follower = Follower(parts_with(channel), StopRequest(print), done.append)
    follower.begin()
    assert done == [SaveEvery(7)]
    assert list(follower.boundary([RECORD])) == [RECORD]
    assert done == [SaveEvery(7), Evaluate(256), Stop()]


def test_a_follower_ends_with_rank_zero_and_not_before(parts_with) -> None:
    def carry_out(order: Order) -> None:
        assert isinstance(order, End)
        raise Ended(order.exit_code)

    asked = StopRequest(print)
    with pytest.raises(Ended) as ended:
        Follower(parts_with(Channel(End(16))), asked, carry_out).end()
    assert ended.value.exit_code == 16
    with pytest.raises(ValueError, match="went on after its last step"):
        Follower(parts_with(Channel()), asked, carry_out).end()


def test_one_process_has_nobody_to_order(parts_with) -> None:
    alone = Coordinator()
    alone.order(Stop())
    assert alone.at_boundary
    assert list(alone.boundary([RECORD])) == [RECORD]
    assert alone.comparison is None


def test_an_order_arrives_as_it_was_given() -> None:
    order = SaveEvery(7)
    assert pickle.loads(pickle.dumps(order)) == order  # noqa: S301 (as torch's broadcast does)


def test_what_any_rank_was_asked_is_asked_of_all_and_the_first_word_stands(parts_with) -> None:
    asked = StopRequest(print)
    channel = Channel(NO_REQUEST, ExitCode.START_AGAIN, ExitCode.INTERRUPTED)
    rank_zero = RankZero(parts_with(channel), asked)
    rank_zero.begin()
    assert asked.exit_code is None
    list(rank_zero.boundary([RECORD]))
    assert asked.exit_code is ExitCode.START_AGAIN
    list(rank_zero.boundary([RECORD]))
    assert asked.exit_code is ExitCode.START_AGAIN


def test_a_rank_says_what_it_was_asked_itself(parts_with, monkeypatch) -> None:
    asked, channel = StopRequest(print), Channel()
    said: list[int] = []
    monkeypatch.setattr(channel, "highest", lambda word: said.append(word) or word)
    follower = Follower(parts_with(channel), asked, print)
    follower.begin()
    asked.exit_code = ExitCode.START_AGAIN
    list(follower.boundary([RECORD]))
    assert said == [NO_REQUEST, ExitCode.START_AGAIN]
