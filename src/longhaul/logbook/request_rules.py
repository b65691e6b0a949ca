"""What may be asked of a run that trains, and what is refused whoever asks.

The command line refuses it at once; the request handler refuses it again, because requests are
files that anybody may have written.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from longhaul.config.problems import unknown_setting
from longhaul.config.recipe import Recipe, change_of
from longhaul.core.errors import UsageError
from longhaul.logbook.ledger import LedgerState

RESETS = ("optimizer", "loss-scale", "schedule", "data")
"""What a fork may begin anew."""
_LEAP = 10_000.0
"""Times the rate in force. People change rates by factors of two to a hundred; beyond this a minus
or a digit is missing, as in 6e5 for 6e-5. No rate is too high by itself: it depends on the rule."""


class NotAskable(UsageError):
    """Nothing was changed."""


def refuse_unless_live(paths: Iterable[str]) -> None:
    """Settings that cannot change while a run trains.

    Raises:
        NotAskable: one of them cannot.
    """
    for path in paths:
        when = change_of(path)
        if when is None:
            raise NotAskable(str(unknown_setting(path)))
        if when == "restart":
            raise NotAskable(
                f"{path}: cannot change while a run trains",
                f"stop the run, then `longhaul train RECIPE --set {path}=…`",
            )
        if when == "never":
            raise NotAskable(
                f"{path}: cannot change while a run trains, nor later: it decides what this run is",
                "start another run with --new",
            )


def refuse_resets(resets: Iterable[str]) -> None:
    """What no fork can begin anew.

    Raises:
        NotAskable: there is no such thing.
    """
    if unknown := [what for what in resets if what not in RESETS]:
        raise NotAskable(f"--reset {unknown[0]}: not one of {', '.join(RESETS)}")


def refuse_senseless(before: Recipe, after: Recipe, step: int, *, force: bool) -> None:
    """Values that are possible in a recipe, and make no sense in a run that stands at `step`.

    Raises:
        NotAskable: with what was probably meant.
    """
    begin = after.optim.schedule.from_step
    if begin > step and begin != before.optim.schedule.from_step:
        raise NotAskable(
            f"optim.schedule.from_step: {begin} lies ahead; the run will stand at step {step}",
            "a schedule begins at a step that was made; until then nothing would be scheduled",
        )
    was, new = before.optim.lr, after.optim.lr
    if not force and not was / _LEAP <= new <= was * _LEAP:
        raise NotAskable(
            f"optim.lr: {new:g} is {new / was:.0e} times the {was:g} in force",
            "if it is no slip of the pen, ask again with --force",
        )


def refuse_undone(ledger: LedgerState, changed: Mapping[str, Any], *, force: bool) -> None:
    """What the run had to undo already. Who insists gets it, and it is not undone again: what comes
    of it is left to the ladders.

    Raises:
        NotAskable: with what came of it.
    """
    for path, value in changed.items():
        undone = None if force else ledger.undone(path, value)
        if undone is not None:
            raise NotAskable(
                f"{path}: {value} is as far out as what was undone at step {undone.step:,} "
                f"because of {undone.cause}",
                "if you want it all the same, ask again with --force; it is not undone again",
            )
