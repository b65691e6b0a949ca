"""Slow work of rank 0, and ranks that wait for them in collectives."""

import threading
from typing import Any

import pytest

from longhaul.parallel import control
from longhaul.parallel.control import STILL_AT_IT, first_does, patiently, received


class Ranks:
    """What rank 0 shares, in order; the others are given it."""

    def __init__(self) -> None:
        self.shared: list[Any] = []
        self.twice = threading.Event()

    def share(self, value: Any = None) -> Any:
        if value is None:
            return self.shared.pop(0)
        self.shared.append(value)
        if len(self.shared) >= 2:
            self.twice.set()
        return value


def test_the_others_are_kept_in_touch_while_work_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "_WORD_EVERY_S", 0.001)
    ranks = Ranks()

    def slow() -> str:
        assert ranks.twice.wait(30), "nobody was told"
        return "step-40"

    assert patiently(slow, ranks) == "step-40"  # type: ignore[arg-type]
    assert set(ranks.shared) == {STILL_AT_IT}
    ranks.share("step-40")
    assert received(ranks) == "step-40"  # type: ignore[arg-type]


def test_what_goes_wrong_there_goes_wrong_here() -> None:
    def fails() -> None:
        raise OSError("the store is gone")

    with pytest.raises(OSError, match="the store is gone"):
        patiently(fails, Ranks())  # type: ignore[arg-type]


def test_one_process_waits_for_itself() -> None:
    assert patiently(lambda: 2, None) == 2


def test_what_rank_0_refuses_is_not_its_own_cause() -> None:
    """It shares the very error that it raises; who follows the causes would never end."""

    class Shared:
        rank = 0

        def share(self, value: object) -> object:
            return value

    with pytest.raises(ZeroDivisionError) as refused:
        first_does(Shared(), lambda: 1 // 0)  # type: ignore[arg-type]
    assert refused.value.__cause__ is None
