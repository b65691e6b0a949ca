"""A remedy written out as a plan: with old values, price and reason in words for a tired person.

Enters: a remedy and what led to it. Leaves: a `Plan`; sentences.
Never knows: why this remedy was chosen.
"""

from collections.abc import Mapping
from typing import Any

from longhaul.config.recover import RecoverSection
from longhaul.core.records import Finding
from longhaul.core.units import short_seconds
from longhaul.recover.back import Sign
from longhaul.recover.plan import Plan, Situation, value_at
from longhaul.recover.price import price_of
from longhaul.recover.rungs import Remedy
from longhaul.recover.sizes import Sizes


def what_is_wrong(finding: Finding) -> str:
    """`loss-spike at step 1,204, first sign at step 1,200`."""
    subject = f" of {finding.subject}" if finding.subject else ""
    return (
        f"{finding.kind}{subject} at step {finding.step:,}, "
        f"first sign at step {finding.first_step:,}"
    )


def what_is_done(remedy: Remedy, old: Mapping[str, Any]) -> str:
    """`back to step 1,100 (memory), pass over blocks 35,200–44,799, optim.lr 0.0006 → 0.0003`."""
    parts: list[str] = []
    if remedy.rollback is not None:
        parts.append(f"back to step {remedy.rollback.step:,} ({remedy.rollback.where})")
    if remedy.skip is not None:
        parts.append(f"pass over blocks {remedy.skip[0]:,}–{remedy.skip[1] - 1:,}")
    parts += [
        f"{path} {_shown(old[path])} → {_shown(new)}" for path, new in remedy.settings.items()
    ]
    parts += [f"reset the {what.replace('-', ' ')}" for what in remedy.reset]
    if remedy.rewarm_steps:
        parts.append(f"warm up over {remedy.rewarm_steps:,} steps")
    if "mask" in remedy.actions:
        parts.append("its update was held back, and training goes on")
    return ", ".join(parts) or "reported, nothing is changed"


def what_it_costs(price: Mapping[str, float]) -> str:
    """`costs 104 steps (12 s) now and about 30 later`; empty if it costs nothing."""
    now, later = price.get("steps_lost", 0), price.get("steps_lost_later", 0)
    parts = []
    if now > 0:
        parts.append(f"{now:,.0f} steps ({short_seconds(price['seconds_lost'])}) now")
    if later >= 1:
        parts.append(f"about {later:,.0f} steps' progress later")
    return f"costs {' and '.join(parts)}" if parts else ""


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
