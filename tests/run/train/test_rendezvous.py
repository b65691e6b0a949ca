from longhaul.core.errors import ExitCode
from longhaul.core.signals import StopRequest
from longhaul.run.train.rendezvous import stop_requests_of
from longhaul.train.coordinator import NO_REQUEST


def test_what_any_rank_was_asked_is_asked_of_all_and_the_first_word_stands() -> None:
    said: list[str] = []
    stop_request = StopRequest(said.append)
    wishes = stop_requests_of(stop_request)
    assert wishes.own() == NO_REQUEST
    wishes.hear(NO_REQUEST)
    assert stop_request.exit_code is None
    wishes.hear(int(ExitCode.START_AGAIN))
    assert stop_request.exit_code == ExitCode.START_AGAIN == wishes.own()
    wishes.hear(int(ExitCode.INTERRUPTED))
    assert stop_request.exit_code == ExitCode.START_AGAIN
