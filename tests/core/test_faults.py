import pytest

from longhaul.core.faults import HANDLERS, Point, point, register


@pytest.fixture(autouse=True)
def _own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HANDLERS, Point.LOSS, [])


def test_an_empty_point_gives_its_value_back() -> None:
    loss = object()
    assert point(Point.LOSS, loss, step=None, sequences=1) is loss


def test_handlers_change_a_value_one_after_the_other_or_leave_it() -> None:
    register(Point.LOSS, lambda loss, sequences: loss + sequences)
    register(Point.LOSS, lambda loss, sequences: None)
    register(Point.LOSS, lambda loss, sequences: 2 * loss)
    assert point(Point.LOSS, 1, sequences=2) == 6


def test_what_a_handler_raises_is_what_befalls_the_run() -> None:
    def full(loss: object) -> None:
        raise OSError("no space left on device")

    register(Point.LOSS, full)
    with pytest.raises(OSError, match="no space left"):
        point(Point.LOSS, None)


def test_no_point_is_filled_where_nobody_drills() -> None:
    assert not any(HANDLERS.values())
