"""A remedy written out as a plan: with old values, price and reason.

Enters: a remedy and what led to it. Leaves: a `Plan`.
Never knows: why this remedy was chosen.
"""

from longhaul.config.recover import RecoverSection
from longhaul.recover.back import Sign
from longhaul.recover.plan import Plan, Situation, value_at
from longhaul.recover.price import price_of
from longhaul.recover.rungs import Remedy
from longhaul.recover.sizes import Sizes
from longhaul.recover.words import what_is_done, what_it_costs


def draft(
    situation: Situation,
    limits: RecoverSection,
    sizes: Sizes,
    remedy: Remedy,
    headline: str,
    *,
    cause: str,
    subject: str = "",
    sign: Sign | None = None,
    fallback: str = "",
    failed: tuple[float, ...] = (),
) -> Plan:
    """The plan.

    Args:
        situation: of now.
        limits: in force.
        sizes: in force.
        remedy: what is done.
        headline: what led to it, in words.
        cause: kind of the finding, or `probation`.
        subject: of that finding.
        sign: the first sign; None without any.
        fallback: name of the fallback that the remedy is.
        failed: learning rates that are left behind.
    """
    values = situation.settings.model_dump(mode="json")
    old = {path: value_at(values, path) for path in remedy.settings}
    price = price_of(situation, remedy, limits, sizes, for_good=bool(fallback))
    costs = what_it_costs(price)
    return Plan(
        cause=cause,
        subject=subject,
        first_step=sign.first_step if sign else 0,
        first_draw=sign.first_draw if sign else 0,
        actions=remedy.actions,
        rollback=remedy.rollback,
        skip=remedy.skip,
        settings=remedy.settings,
        old=old,
        reset=remedy.reset,
        rewarm_steps=remedy.rewarm_steps,
        price=price,
        fallback=fallback,
        undo=remedy.undo,
        failed=failed,
        headline=headline,
        reason=f"{headline}: {what_is_done(remedy, old)}" + (f"; {costs}" if costs else ""),
    )
