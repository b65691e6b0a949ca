"""What a run drew from its sources before its mixture was changed: kept in the ledger, because a
draw that is read again, after a rollback or for `longhaul data at`, must be the same draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DrawnStage:
    """Weights that held from a draw on."""

    from_draw: int
    cycle: int
    """Draws after which the shares are exact."""
    weights: Mapping[str, float]
    """By name of source, in the order in which they were dealt out."""


@dataclass(frozen=True)
class MixtureBefore:
    """The order of data up to a draw, from which on the recipe's own mixture holds."""

    until: int
    """First draw of the mixture that follows."""
    stages: tuple[DrawnStage, ...]
    """From draw 0 on."""
    blocks: Mapping[str, int]
    """Whole blocks of each source: the order within it is a permutation of these."""

    def as_data(self) -> dict[str, Any]:
        """For `Decision.data`."""
        stages = [[s.from_draw, s.cycle, list(s.weights.items())] for s in self.stages]
        return {"until": self.until, "stages": stages, "blocks": dict(self.blocks)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "MixtureBefore":
        """What `as_data` gave."""
        stages: Sequence[Any] = data["stages"]
        return cls(
            int(data["until"]),
            tuple(
                DrawnStage(int(begin), int(cycle), {str(n): float(w) for n, w in weights})
                for begin, cycle, weights in stages
            ),
            {str(name): int(count) for name, count in data["blocks"].items()},
        )
