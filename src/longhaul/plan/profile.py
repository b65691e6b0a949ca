"""Where the time of some steps went: stages, operations against their roofline, surprises."""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from longhaul.core.units import Seconds
from longhaul.plan.roofline import Ceilings, Row, rows
from longhaul.plan.surprises import Part, Seen, Surprise, parts, surprises, undisturbed_s
from longhaul.plan.timeline import Timeline

TRACE, PAGE = "trace.json.gz", "profile.html"
UNCOMPILED_TRACE = "trace-uncompiled.json.gz"


@dataclass(frozen=True)
class Profile:
    """Where the time of some steps went."""

    recipe: str
    timeline: Timeline
    ceilings: Ceilings
    seen: Seen
    folder: Path
    uncompiled: tuple[Timeline, Seen] | None = None
    """Of a compiled recipe as many steps uncompiled, as only there operations belong to modules."""

    @cached_property
    def rows(self) -> list[Row]:
        """Operations against their roofline."""
        return rows(self.timeline, self.ceilings)

    @cached_property
    def parts(self) -> list[Part]:
        """Modules and the optimizer, with what their work would take."""
        timeline, seen = self._by_module
        return parts(timeline, self.ceilings, seen)

    @cached_property
    def surprises(self) -> list[Surprise]:
        """The most expensive first."""
        step_s = undisturbed_s(*self._by_module)
        return surprises(self.timeline, self.parts, step_s, self.ceilings, self.seen)

    @property
    def _by_module(self) -> tuple[Timeline, Seen]:
        return self.uncompiled or (self.timeline, self.seen)

    @property
    def step_s(self) -> Seconds:
        """Of a watched step."""
        return self.timeline.seconds / self.timeline.steps

    @property
    def disturbed(self) -> float:
        """Share of a step, on a CPU, in which the machine computed for others."""
        return 1.0 - undisturbed_s(self.timeline, self.seen) / self.step_s

    def named(self) -> list[Surprise]:
        """Three, and every read of the host beyond them: what costs a CPU nothing stops a GPU."""
        first, more = self.surprises[:3], self.surprises[3:]
        return [*first, *(one for one in more if one.kind == "host wait")]

    def as_data(self) -> dict[str, Any]:
        """For programs; seconds of an average step."""
        steps = self.timeline.steps
        return {
            "recipe": self.recipe, "device": self.ceilings.device, "steps": steps,
            "step_s": self.step_s, "unwatched_step_s": self.seen.plain_s,
            "gauge_steps": self.seen.gauge_steps, "compiled": self.seen.compiled,
            "stages": {name: s / steps for name, s in self.timeline.stages.items()},
            "operations": [asdict(row) | {"achieved": row.achieved} for row in self.rows],
            "parts": [asdict(part) for part in self.parts],
            "surprises": [asdict(surprise) for surprise in self.surprises],
            "ceilings": {"flops": dict(self.ceilings.flops), "bandwidth": self.ceilings.bandwidth,
                         "copies": list(self.ceilings.copies)},
            "trace": str(self.folder / TRACE), "page": str(self.folder / PAGE),
        }  # fmt: skip
