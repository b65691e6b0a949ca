import os
import signal

import pytest

from longhaul.core.errors import ExitCode
from longhaul.run.signals import leaving_at_once, listening


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_schedulers_notice_becomes_a_wish_and_handlers_are_put_back(number) -> None:
    said: list[str] = []
    before = signal.getsignal(number)
    with listening(said.append) as wish:
        assert wish.exit_code is None
        os.kill(os.getpid(), number)
        assert wish.exit_code == ExitCode.START_AGAIN
    assert signal.getsignal(number) is before
    assert f"{number.name}: finishing this step and saving" in said[0]


def test_where_there_is_nothing_to_save_a_notice_ends_at_once() -> None:
    with pytest.raises(SystemExit) as left, leaving_at_once():
        os.kill(os.getpid(), signal.SIGUSR1)
    assert left.value.code == ExitCode.START_AGAIN


def test_a_first_interrupt_asks_for_130_and_says_what_a_second_one_does() -> None:
    said: list[str] = []
    with listening(said.append) as wish:
        os.kill(os.getpid(), signal.SIGINT)
        assert wish.exit_code == ExitCode.INTERRUPTED
    assert "once more stops at once" in said[0]
