from longhaul.core.errors import ExitCode
from longhaul.core.signals import StopWish
from longhaul.run.train.rendezvous import wishes_of
from longhaul.train.coordinator import NO_WISH


def test_what_any_rank_was_asked_is_asked_of_all_and_the_first_word_stands() -> None:
    said: list[str] = []
    wish = StopWish(said.append)
    wishes = wishes_of(wish)
    assert wishes.own() == NO_WISH
    wishes.hear(NO_WISH)
    assert wish.exit_code is None
    wishes.hear(int(ExitCode.START_AGAIN))
    assert wish.exit_code == ExitCode.START_AGAIN == wishes.own()
    wishes.hear(int(ExitCode.INTERRUPTED))
    assert wish.exit_code == ExitCode.START_AGAIN
