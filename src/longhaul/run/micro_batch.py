"""`batch.micro_sequences = "auto"`: found once, kept in the ledger, until the recipe has its own.

Enters: an attempt that is about to train. Leaves: a decision in the ledger where one is due.
Never knows: how memory is measured.
"""

from longhaul.config.recipe import Recipe
from longhaul.parallel.ranks import Ranks
from longhaul.run.attempt import Attempt
from longhaul.train.memory import fitting_micro_sequences
from longhaul.train.parts import Parts

PATH = "batch.micro_sequences"
_WHO = "longhaul"
"""Signs what was found; a decision of anybody else is left alone."""


def settle_micro_batch(attempt: Attempt, parts: Parts) -> None:
    """See to it that the micro-batch in force is a number before the first step is made.

    What was found stays, whatever memory this start finds, because another micro-batch would
    give other bits. A number in the recipe is a person's newer word and ends it; `auto` after
    that takes up again what was found.

    Raises:
        NeedsPerson: not even one sequence fits.
        LedgerError: the decision could not be written.
    """
    _settle(attempt, parts)
    if parts.ranks is not None:
        parts.ranks.control.first_number(0)


def measure_told(recipe: Recipe, parts: Parts, ranks: Ranks) -> None:
    """Measure with rank 0, if it has to; on every other rank."""
    while ranks.control.first_number(0):
        fitting_micro_sequences(parts.step, recipe, ranks)


def _settle(attempt: Attempt, parts: Parts) -> None:
    asked, ledger = attempt.recipe.batch.micro_sequences, attempt.book.ledger.state
    in_force = ledger.override_at(PATH, parts.progress.position.step)
    if asked == "auto" and in_force is None:
        _find(attempt, parts)
    elif asked != "auto" and in_force is not None and in_force.who == _WHO:
        wanted = "the whole batch" if asked is None else asked
        _decide(attempt, parts, "unset", f"the recipe asks for {wanted} now", old=in_force.value)


def _find(attempt: Attempt, parts: Parts) -> None:
    earlier = attempt.book.ledger.state.withdrawn.get(PATH)
    if earlier is not None and earlier.who == _WHO:
        value, reason = earlier.value, earlier.reason
    else:
        if parts.ranks is not None:
            parts.ranks.control.first_number(1)
        found = fitting_micro_sequences(parts.step, attempt.recipe, parts.ranks)
        value, reason = found.sequences, found.reason
    _decide(attempt, parts, "set", reason, value=value, old="auto")
    attempt.view.say(f"micro-batch: {value} sequences of {_sizes(attempt)} at once; {reason}")


def _decide(attempt: Attempt, parts: Parts, kind: str, reason: str, **data: object) -> None:
    step = parts.progress.position.step
    attempt.book.decide(kind, step, {"path": PATH, **data}, who=_WHO, reason=reason)


def _sizes(attempt: Attempt) -> str:
    sizes = dict.fromkeys(stage.sequences for stage in attempt.recipe.batch_stages())
    return ", then ".join(map(str, sizes))
