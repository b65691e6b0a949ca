"""Plans in words, for a tired person.

Enters: findings and remedies. Leaves: sentences. Never knows: how they came about.
"""

from collections.abc import Mapping
from typing import Any

from longhaul.core.records import Finding
from longhaul.core.units import short_seconds
from longhaul.recover.rungs import Remedy


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
