"""Sequences computed at once, where longhaul chooses them: found once for `auto`, halved once
after a rank ran out of memory; kept in the ledger, until the recipe has its own. Those of an
evaluation are halved as often as ranks run out in one together.

Enters: an attempt that is about to train. Leaves: a decision in the ledger where one is due.
Never knows: how memory is measured.
"""

from longhaul.config.recipe import Recipe
from longhaul.core.records import Event
from longhaul.parallel.world import Ranks
from longhaul.run.train.attempt import Attempt
from longhaul.train.memory import NO_LIMIT, fitting_micro_sequences
from longhaul.train.parts import Parts

PATH = "batch.micro_sequences"
EVALUATION = "evaluation.sequences"
_WHO = "longhaul"
"""Signs what was found; a decision of anybody else is left alone."""
RAN_OUT = "out-of-memory"
"""Signs what was made smaller because it did not fit."""


def settle_micro_batch(attempt: Attempt, parts: Parts) -> None:
    """See to it that the micro-batch in force is a number that fits before the first step is made.

    What was found stays, whatever memory this start finds, because another micro-batch would
    give other bits. A number in the recipe is a person's newer word and ends it; `auto` after
    that takes up again what was found. Where an earlier attempt ran out of memory, and nothing was
    decided since, half of what it computed at once holds from now on: its word is in the journal.

    Raises:
        NeedsPerson: not even one sequence fits.
        TooMuchMeasured: a rank ran out of memory while several measured.
        LedgerError: the decision could not be written.
    """
    _settle(attempt, parts)
    if parts.ranks is not None:
        parts.ranks.control.first_number(0)


def measure_as_ordered(recipe: Recipe, parts: Parts, ranks: Ranks) -> None:
    """Measure with rank 0, if it has to; on every other rank.

    Raises:
        TooMuchMeasured: this rank ran out of memory.
    """
    while below := ranks.control.first_number(0):
        fitting_micro_sequences(parts.step, recipe, ranks, below)


def _settle(attempt: Attempt, parts: Parts) -> None:
    _settle_evaluation(attempt, parts)
    asked, ledger = attempt.recipe.batch.micro_sequences, attempt.run_log.ledger.state
    in_force = ledger.override_at(PATH, parts.progress.position.step)
    if in_force is not None and in_force.who in (_WHO, RAN_OUT):
        answers_this = in_force.who == RAN_OUT and in_force.old == asked
        if asked != "auto" and not answers_this:
            wanted = "the whole batch" if asked is None else asked
            _decide(attempt, parts, "unset", f"the recipe asks for {wanted} now",
                    old=in_force.value)  # fmt: skip
            return
    fewer = [
        (event.data["next"], str(event.data["message"]))
        for event in attempt.history.out_of_memory
        if _asks_for_fewer(event, PATH) and event.data["asked"] == asked
    ]
    if fewer:
        value, reason = min(fewer)
        _decide(attempt, parts, "set", reason, who=RAN_OUT, value=value, old=asked)
        attempt.view.say(f"micro-batch: {value} sequences of {_sizes(attempt)} at once; {reason}")
    elif asked == "auto" and in_force is None:
        _find(attempt, parts)


def _settle_evaluation(attempt: Attempt, parts: Parts) -> None:
    """Where ranks share their passes, one that runs out of memory in an evaluation cannot make its
    pass again while the others stand in the middle of it: this attempt evaluates half as many.
    """
    fewer = [
        (event.data["next"], str(event.data["message"]))
        for event in attempt.history.out_of_memory
        if _asks_for_fewer(event, EVALUATION)
    ]
    if fewer:
        value, reason = min(fewer)
        old = attempt.recipe.evaluation.sequences
        _decide(attempt, parts, "set", reason, RAN_OUT, EVALUATION, value=value, old=old)
        attempt.view.say(f"evaluation: {value} sequences at once; {reason}")


def _asks_for_fewer(event: Event, path: str) -> bool:
    return bool(event.data.get("next")) and event.data.get("path", PATH) == path


def _find(attempt: Attempt, parts: Parts) -> None:
    earlier = attempt.run_log.ledger.state.withdrawn.get(PATH)
    who = _WHO
    if earlier is not None and earlier.who in (_WHO, RAN_OUT):
        value, reason, who = earlier.value, earlier.reason, earlier.who
    else:
        below = _known_too_many(attempt)
        if parts.ranks is not None:
            parts.ranks.control.first_number(below)
        found = fitting_micro_sequences(parts.step, attempt.recipe, parts.ranks, below)
        value, reason = found.sequences, found.reason
    _decide(attempt, parts, "set", reason, who=who, value=value, old="auto")
    attempt.view.say(f"micro-batch: {value} sequences of {_sizes(attempt)} at once; {reason}")


def _known_too_many(attempt: Attempt) -> int:
    """Half of what a rank ran out of memory with is tried next, or each size would cost a start."""
    measured = [event.data.get("measured") for event in attempt.history.out_of_memory]
    return min((size // 2 + 1 for size in measured if size), default=NO_LIMIT)


def _decide(
    attempt: Attempt,
    parts: Parts,
    kind: str,
    reason: str,
    who: str = _WHO,
    path: str = PATH,
    **data: object,
) -> None:
    step = parts.progress.position.step
    attempt.run_log.decide(kind, step, {"path": path, **data}, who=who, reason=reason)


def _sizes(attempt: Attempt) -> str:
    sizes = dict.fromkeys(stage.sequences for stage in attempt.recipe.batch_stages())
    return ", then ".join(map(str, sizes))
