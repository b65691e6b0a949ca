import os
import signal

from longhaul.core.errors import ExitCode
from longhaul.supervise.pipes import STOPS, heard, listening


def test_signals_are_heard_in_order_and_the_handlers_put_back() -> None:
    before = {number: signal.getsignal(number) for number in STOPS}
    with listening() as came:
        assert heard(came) == []
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert heard(came) == [signal.SIGUSR1, signal.SIGINT, signal.SIGINT]
        assert heard(came) == []
    assert {number: signal.getsignal(number) for number in STOPS} == before


def test_a_hangup_that_is_ignored_on_purpose_stays_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening() as came:
            os.kill(os.getpid(), signal.SIGHUP)
            assert heard(came) == []
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_only_a_persons_interrupt_is_no_reason_to_be_started_again() -> None:
    assert STOPS[signal.SIGINT] == ExitCode.INTERRUPTED
    assert set(STOPS.values()) == {ExitCode.INTERRUPTED, ExitCode.START_AGAIN}
