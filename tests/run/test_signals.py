import os
import signal

from longhaul.core.errors import ExitCode
from longhaul.run.signals import listening


def test_a_signal_becomes_a_wish_and_handlers_are_put_back() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with listening(said.append) as wish:
        assert wish.exit_code is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert wish.exit_code == ExitCode.START_AGAIN
    assert signal.getsignal(signal.SIGTERM) is before
    assert "SIGTERM: finishing this step and saving" in said[0]


def test_a_first_interrupt_asks_for_130_and_says_what_a_second_one_does() -> None:
    said: list[str] = []
    with listening(said.append) as wish:
        os.kill(os.getpid(), signal.SIGINT)
        assert wish.exit_code == ExitCode.INTERRUPTED
    assert "once more stops at once" in said[0]
