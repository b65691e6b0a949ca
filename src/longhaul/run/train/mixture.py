"""A start with another mixture: what was drawn so far is kept in the ledger, and goes on as it was.

Weights, caps, temperature and stages may change, and sources be added or taken away. Each source
goes on at its own next block; what the mixture was before stays in the ledger, by which every rank,
every replay and `longhaul data at` plan the draws.
"""

from itertools import chain
from typing import Any

from longhaul.config.load import recipe_from_values
from longhaul.config.recipe import Recipe, source_name
from longhaul.core.errors import NeedsPerson
from longhaul.data.forecast import forecast
from longhaul.data.mixture import MixturePlan, plan_of
from longhaul.data.verification import earlier_texts, has_sources_of
from longhaul.logbook.description import decision_in_words
from longhaul.logbook.lease import user_name
from longhaul.logbook.ledger import LedgerState
from longhaul.run.train.attempt import Attempt
from longhaul.train.parts import Parts


def settle_mixture(attempt: Attempt, parts: Parts, effective: Recipe) -> LedgerState:
    """Decide a change of the mixture if the recipe has one, and say what will be read how often;
    the ledger after it.

    Raises:
        DataError: the sources do not last to the end of the run.
        NeedsPerson: what the mixture was before cannot be told any more.
    """
    run_log, say, position = attempt.run_log, attempt.view.say, parts.progress.position
    last = run_log.history.last_segment
    if last is not None and (position.draw or run_log.ledger.mixture_before is not None):
        old = recipe_from_values(last.settings, last.file)
        if _mixture(old) != _mixture(effective):
            plan = _plan_before(attempt, parts, old)
            before, shares = plan.before(position.draw), plan.shares(position.draw)
            parts.batches.follow(before)
            decision = run_log.decide(
                "mixture", position.step,
                {"before": before.as_data(), "from_draw": position.draw, "old": shares,
                 "new": parts.batches.plan.shares(position.draw)},
                who=user_name(), reason="",
            )  # fmt: skip
            say(f"data: {decision_in_words(decision)}")
    parts.batches.follow(run_log.ledger.mixture_before)
    for line in forecast(parts.batches.plan, effective):
        say(f"data: {line}")
    return run_log.ledger


def _mixture(recipe: Recipe) -> Any:
    """All that decides which source a draw is from."""
    data = recipe.data
    sources = {source_name(s.name, s.path): (s.weight, s.max_epochs) for s in data.sources}
    return sources, data.temperature, data.stages


def _plan_before(attempt: Attempt, parts: Parts, old: Recipe) -> MixturePlan:
    """The plan that the last segment drew by."""
    for text in chain([parts.dataset], earlier_texts(attempt.run_log.folder)):
        if has_sources_of(text, old):
            before = attempt.run_log.ledger.mixture_before
            return plan_of(text, old.data, old.block_length(), old.order.cycle, before)
    raise NeedsPerson(
        f"the prepared text of run {attempt.run_log.folder.name} before its sources changed is "
        "gone, and with it where each source stood",
        "put it back, or put data.sources back as they were",
    )
