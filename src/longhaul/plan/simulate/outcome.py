"""What came of simulated runs: where the time went, and the mean over seeds with its interval."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Final, Literal, get_args

from longhaul.core.units import Seconds
from longhaul.plan.ladder.fit import Interval, mean95
from longhaul.plan.simulate.inputs import Scenario

Part = Literal[
    "training",  # kept to the end
    "slow",  # what steps took longer for stragglers, or with fewer replicas
    "lost work",  # training that was gone back over
    "save stalls",
    "detection",
    "people",  # waiting for a person
    "diagnosis",  # by programs: causes, probes, replays
    "nodes",  # waiting for nodes
    "restart",  # process groups, reading a checkpoint
    "planned",  # maintenance
    "outage",  # all nodes away at once
]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
"""Every second of a simulated run belongs to one of these."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated run."""

    seed: int
    seconds: Mapping[Part, Seconds]
    """By `PARTS`; they add up to the run's wall time."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Cause as its source names it → how often it ended an attempt."""
    restarts: int = 0
    people: int = 0
    """How often a person was waited for."""
    numeric: int = 0
    """Incidents of the numbers."""
    rollbacks: int = 0
    """Of them, those that were gone back over."""
    refused: int = 0
    """Machines that came back under another name and were recognised."""
    shrunk_s: Seconds = 0.0
    """Time in training with fewer replicas than at full strength."""
    course: tuple[tuple[float, float], ...] = ()
    """(day, share of the ideal's steps) along the run, for pictures."""

    @property
    def wall_s(self) -> Seconds:
        """Wall time."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """Time of training that was kept, at full speed, as a share of wall time."""
        return self.seconds["training"] / self.wall_s

    def share(self, part: Part) -> float:
        """A part as a share of wall time."""
        return self.seconds[part] / self.wall_s


@dataclass(frozen=True, slots=True)
class Result:
    """The same scenario, simulated with several seeds."""

    scenario: Scenario
    outcomes: tuple[Outcome, ...]

    @property
    def effective(self) -> Interval:
        """Goodput, times what these GPUs are of those of the published ideal."""
        share = self.scenario.share_of_ideal
        return mean95([share * outcome.goodput for outcome in self.outcomes])

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest of the seeds: one run is a single throw."""
        values = [self.scenario.share_of_ideal * outcome.goodput for outcome in self.outcomes]
        return min(values), max(values)

    def mean(self, of: Callable[[Outcome], float]) -> float:
        """Mean of a figure over the seeds."""
        return fmean(of(outcome) for outcome in self.outcomes)

    def shares(self) -> dict[Part, float]:
        """Mean share of each part."""
        return {part: fmean(one.share(part) for one in self.outcomes) for part in PARTS}

    def limits(self) -> list[tuple[Part, float]]:
        """What takes most from training, the largest first."""
        lost = [(part, share) for part, share in self.shares().items() if part != "training"]
        return sorted(lost, key=lambda item: -item[1])

    def within(self, points: float) -> bool | None:
        """Whether the mean lies within so many points of what was published, a share; None: nothing
        was. Of a lower bound, whether it lies above it, or below it by no more.
        """
        published = self.scenario.published
        if published is None:
            return None
        short = published - self.effective.value
        return short <= points if self.scenario.at_least else abs(short) <= points

    def as_json(self) -> dict[str, Any]:
        """For files and `--json`."""
        scenario, effective = self.scenario, self.effective
        return {
            "scenario": scenario.name,
            "gpus": scenario.gpus,
            "nodes": scenario.nodes,
            "spares": scenario.spares,
            "days": round(scenario.days, 4),
            "seeds": len(self.outcomes),
            "effective": effective.value,
            "low": effective.low if len(self.outcomes) > 1 else None,
            "high": effective.high if len(self.outcomes) > 1 else None,
            "least": self.spread[0],
            "most": self.spread[1],
            "published": scenario.published,
            "shares": self.shares(),
            "failures": self.mean(lambda o: sum(o.failures.values())),
            "people": self.mean(lambda o: o.people),
            "numeric": self.mean(lambda o: o.numeric),
            "rollbacks": self.mean(lambda o: o.rollbacks),
            "refused": self.mean(lambda o: o.refused),
            "inputs": {name: asdict(one) for name, one in scenario.inputs.listed()},
        }


def summed(counts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Mean count of each cause over seeds, the most frequent first."""
    names = {name for one in counts for name in one}
    means = {name: fmean(one.get(name, 0) for one in counts) for name in names}
    return dict(sorted(means.items(), key=lambda item: (-item[1], item[0])))
