"""What differs between two segments, and between the recipe and what is in force now.

Enters: segments, the recipe's settings, the ledger. Leaves: differences, with who made them.
Never knows: how they are shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longhaul.core.machine import differences
from longhaul.logbook.ledger import LedgerState, Override, effective_settings
from longhaul.logbook.segments import SegmentOpening

SECTIONS = ("settings", "software", "machine", "environment", "torch", "data", "nodes")
"""What a comparison covers, in order; all but settings and nodes are parts of the fingerprint."""


@dataclass(frozen=True)
class Drift:
    """A setting whose value in force is not the recipe's."""

    path: str
    recipe: Any
    now: Any
    why: str


def segment_differences(
    old: SegmentOpening, new: SegmentOpening
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Section → dotted path → (old, new), for every section that both segments know of."""
    before, after = _sections(old), _sections(new)
    return {
        section: differences(before.get(section, {}), after.get(section, {}))
        for section in (*SECTIONS, *sorted((before.keys() | after.keys()) - {*SECTIONS}))
        if section in before or section in after
    }


def drift_from_recipe(
    recipe: Mapping[str, Any], segments: Sequence[SegmentOpening], ledger: LedgerState, step: int
) -> list[Drift]:
    """Settings in force after `step` updates that are not the recipe's, and why.

    Args:
        recipe: nested settings as the recipe gives them, defaults included.
        segments: the run's segments as they were opened, at least one; the last one's settings
            are in force, with the ledger's overrides at `step` on top.
        ledger: everything decided so far.
        step: updates made.
    """
    now = effective_settings(segments[-1].settings, ledger.overrides_at(step))
    return [
        Drift(path, wanted, value, _why(path, value, segments, ledger.override_at(path, step)))
        for path, (wanted, value) in differences(recipe, now).items()
    ]


def scheduled(ledger: LedgerState, step: int) -> list[tuple[str, Override]]:
    """Overrides that will come into force after `step` updates, by path and step."""
    return [
        (path, override)
        for path, overrides in sorted(ledger.overrides.items())
        for override in overrides
        if override.from_step > step
    ]


def _why(
    path: str, value: Any, segments: Sequence[SegmentOpening], override: Override | None
) -> str:
    if override is not None and override.value == value:
        return f"set by {override.who} at step {override.step:,}: {override.reason or 'no reason'}"
    for segment in reversed(segments):
        if path in segment.difference:
            return f"since segment {segment.number}: {segment.reason}"
    return "the recipe was changed after the last start"


def _sections(segment: SegmentOpening) -> dict[str, Mapping[str, Any]]:
    parts = {
        name: part if isinstance(part, Mapping) else {name: part}
        for name, part in segment.fingerprint.items()
    }
    return {"settings": segment.settings, **parts, "nodes": {"nodes": list(segment.nodes)}}
