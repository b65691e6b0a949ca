"""What may be asked of a run that trains, and what is refused whoever asks.

The command line refuses it at once; the request handler refuses it again, because requests are
files that anybody may have written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from longhaul.config.load import with_overrides
from longhaul.config.problems import unknown_setting
from longhaul.config.recipe import Recipe, change_of
from longhaul.core.errors import UsageError
from longhaul.logbook.ledger import LedgerState
from longhaul.logbook.requests import Request

RESETS = ("optimizer", "loss-scale", "schedule", "data")
"""What a fork may begin anew."""
_LEAP = 10_000.0
"""Times the rate in force. People change rates by factors of two to a hundred; beyond this a minus
or a digit is missing, as in 6e5 for 6e-5. No rate is too high by itself: it depends on the rule."""


class Refused(UsageError):
    """A request that cannot be honoured; nothing was changed."""


@dataclass(frozen=True)
class Note:
    """Write something down."""

    text: str


@dataclass(frozen=True)
class Set:
    """Change one setting, at once or from a later step on."""

    path: str
    value: Any = None
    from_step: int = 0
    force: bool = False


@dataclass(frozen=True)
class Skip:
    """Pass over draws `begin` to `end` of the data."""

    begin: int
    end: int


@dataclass(frozen=True)
class RollBack:
    """Go back to the newest state at or before a step."""

    to: int


@dataclass(frozen=True)
class Fork:
    """Begin a new line of descent at a step."""

    at: int
    set: dict[str, Any] = field(default_factory=dict)
    reset: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class Stop:
    """Save and end."""


Arguments = Note | Set | Skip | RollBack | Fork | Stop
_KINDS: dict[str, type[Arguments]] = {
    "note": Note, "set": Set, "skip": Skip, "rollback": RollBack, "fork": Fork, "stop": Stop,
}  # fmt: skip


def arguments_of(request: Request) -> Arguments:
    """What is asked for, unknown fields passed over; Refused if it is no request or lacks one."""
    kind = _KINDS.get(request.kind)
    if kind is None:
        raise Refused(f"{request.kind}: this longhaul knows no such request")
    try:
        return TypeAdapter(kind).validate_python(dict(request.data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{request.kind} {dict(request.data)}"
        raise Refused(f"{what}: makes no sense ({where}: {first['msg']})") from error


def changed_recipe(
    before: Recipe,
    changed: Mapping[str, Any],
    origins: Mapping[str, str],
    ledger: LedgerState,
    step: int,
    *,
    force: bool,
) -> Recipe:
    """The settings of a run after a change that somebody asks for while it trains.

    `changed` is dotted path → value, `origins` dotted path → where it was asked; `step` counts the
    updates made when the change comes into force. With `force` somebody insists: then a leap of the
    learning rate is no slip, and what the run had to undo already is not undone again: what comes
    of it is left to the ladders.

    Raises:
        RecipeError: a value is impossible.
        Refused: a setting cannot change while a run trains, or its value makes no sense there.
    """
    refuse_unless_live(changed)
    after = with_overrides(before, changed, origins)
    begin = after.optim.schedule.from_step
    if begin > step and begin != before.optim.schedule.from_step:
        raise Refused(
            f"optim.schedule.from_step: {begin} lies ahead; the run will stand at step {step}",
            "a schedule begins at a step that was made; until then nothing would be scheduled",
        )
    if force:
        return after
    was, new = before.optim.lr, after.optim.lr
    if not was / _LEAP <= new <= was * _LEAP:
        raise Refused(
            f"optim.lr: {new:g} is {new / was:.0e} times the {was:g} in force",
            "if it is no slip of the pen, ask again with --force",
        )
    for path, value in changed.items():
        undone = ledger.undone(path, value)
        if undone is not None:
            raise Refused(
                f"{path}: {value} is as far out as what was undone at step {undone.step:,} "
                f"because of {undone.cause}",
                "if you want it all the same, ask again with --force; it is not undone again",
            )
    return after


def refuse_unless_live(paths: Iterable[str]) -> None:
    """Refused if one of the settings may not change while a run trains."""
    for path in paths:
        when = change_of(path)
        if when is None:
            raise Refused(str(unknown_setting(path)))
        if when == "restart":
            raise Refused(
                f"{path}: cannot change while a run trains",
                f"stop the run, then `longhaul train RECIPE --set {path}=…`",
            )
        if when == "never":
            raise Refused(
                f"{path}: cannot change while a run trains, nor later: it decides what this run is",
                "start another run with --new",
            )


def refuse_resets(resets: Iterable[str]) -> None:
    """Refused if one of them is nothing that a fork can begin anew."""
    if unknown := [what for what in resets if what not in RESETS]:
        raise Refused(f"--reset {unknown[0]}: not one of {', '.join(RESETS)}")
