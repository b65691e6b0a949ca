"""What a plan costs: steps to be made again, and progress lost later.

**The model of progress.** YaLM-100B lost about 30 % of its progress by halving the learning rate.
Progress per step is therefore taken as (rate / asked rate)^p with 0.5^p = 0.7, p = 0.515. A
lowered rate is expected to go back up by one `raise_factor` every `raise_after` healthy steps, so
that the price of lowering is what is lost until then, or until the end of the run. A warm-up
costs half its steps, a tighter clip nothing: it binds in bad steps only. Passed-over data costs
no steps; other data is read instead.

Enters: a situation and what is to be done. Leaves: named figures.
Never knows: whether they are worth it.
"""

import math
from collections.abc import Mapping

from longhaul.config.recover import RecoverSection
from longhaul.recover.learning_rate import PATH, Rates, rates
from longhaul.recover.plan import Situation
from longhaul.recover.rungs import Remedy
from longhaul.recover.sizes import Sizes

PROGRESS_EXPONENT = math.log(0.7) / math.log(0.5)


def price_of(
    situation: Situation, remedy: Remedy, limits: RecoverSection, sizes: Sizes, *, for_good: bool
) -> Mapping[str, float]:
    """The price of a remedy.

    Args:
        situation: whose step and pace count.
        remedy: what is done.
        limits: with the step back up.
        sizes: with the healthy steps before it.
        for_good: its settings are what is asked for from now on, as a fallback's are.

    Returns:
        `steps_lost` to be made again, `seconds_lost` on them, `blocks_skipped`,
        `steps_lost_later` (full steps' worth of progress; below 0 where a raise gains some) and
        `seconds_lost_later`.
    """
    known = rates(situation, limits)
    begin = remedy.rollback.step if remedy.rollback else situation.step
    total = situation.settings.total_steps()
    left = None if total is None else max(total - begin, 0)
    new = float(remedy.settings.get(PATH, known.now))
    factor = 1.0 if for_good else limits.raise_factor

    def cost(rate: float) -> float:
        return cost_of_rate(rate, known, factor, sizes.raise_after, left)

    lost = situation.step - begin
    later = cost(new) - cost(known.now) + remedy.rewarm_steps / 2
    if any(change.how != "raise" for change in remedy.undo):
        later = 0.0  # what somebody set just before the trouble is no pace to compare with
    return {
        "steps_lost": lost,
        "seconds_lost": round(lost * situation.seconds_per_step, 3),
        "blocks_skipped": remedy.skip[1] - remedy.skip[0] if remedy.skip else 0,
        "steps_lost_later": round(later, 1),
        "seconds_lost_later": round(later * situation.seconds_per_step, 3),
    }


def cost_of_rate(
    rate: float, known: Rates, raise_factor: float, raise_after: int, steps_left: int | None
) -> float:
    """Full steps' worth of progress lost by going on at a rate, compared with the one asked for.

    Args:
        rate: to go on at.
        known: with the rate asked for and the ceiling.
        raise_factor: of one step back up; 1 never goes up.
        raise_after: healthy steps before each step up.
        steps_left: to the end of the run; None if nobody knows, which counts the way up only.
    """
    lost, left = 0.0, math.inf if steps_left is None else float(steps_left)
    while rate < known.ceiling and left > 0 and raise_factor > 1:
        stretch = min(float(raise_after), left)
        lost += stretch * _lost_share(rate, known.asked)
        left -= stretch
        rate = min(rate * raise_factor, known.ceiling)
    if left < math.inf:
        lost += left * _lost_share(rate, known.asked)
    return lost


def _lost_share(rate: float, asked: float) -> float:
    return float(max(1 - (rate / asked) ** PROGRESS_EXPONENT, 0.0))
