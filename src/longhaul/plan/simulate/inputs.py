"""What a simulation is told: each figure with its unit, its source, and the span it may lie in."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from longhaul.config.recipe import Recipe
from longhaul.core.units import Seconds
from longhaul.parallel.layout import Layout
from longhaul.plan.failure_rates import ASSUMED, FailureRate

MINUTE_S: Final[Seconds] = 60.0
HOUR_S: Final[Seconds] = 3600.0
NOT_TOLD: Final = "not told of this run"
"""Source of a figure that a scenario has no use for."""


OWN: Final = {
    "hang_seen_s": "the watchdog's deadline for such steps, by supervise/ranks/watchdog.py",
    "silent_seen_s": "the next comparison of ranks, every monitor.hash_every steps",
    "straggler_seen_s": "the steps that supervise/ranks/stragglers.py needs",
    "save_interval_s": "as checkpoint.interval_steps = auto, by store/save_interval.py",
}
"""What stands in where an input is None."""


@dataclass(frozen=True, slots=True)
class Input:
    """One figure."""

    value: float
    unit: str
    source: str
    """Begins with `assumed` where nobody published or measured it."""
    low: float | None = None
    high: float | None = None
    """The span it may lie in, where it is assumed."""

    @property
    def assumed(self) -> bool:
        """Nobody published or measured it."""
        return self.source.startswith(ASSUMED)

    @property
    def has_span(self) -> bool:
        """It has a span to vary it over."""
        return self.low is not None and self.high is not None


def assumed(value: float, low: float, high: float, unit: str, after: str = "") -> Input:
    """A figure that nobody published, with what it was taken after."""
    return Input(value, unit, f"{ASSUMED}: {after}" if after else ASSUMED, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """How failures come, are seen and are answered. Durations are in seconds; a mean is that of an
    exponential distribution.
    """

    failure_scale: Input
    """Times the published rates."""
    crash_seen_s: Input
    """From the death of a rank to its being noticed."""
    hang_seen_s: Input | None
    """None: the watchdog's own deadline for this run's steps."""
    silent_seen_s: Input | None
    """None: the next comparison of ranks, every `monitor.hash_every` steps."""
    straggler_seen_s: Input | None
    """None: the steps that the watch for stragglers needs."""
    straggler_slowdown: Input
    """Times a usual step, with a straggler among the nodes."""
    manual_share: Input
    """Share of failures whose restart waits for a person."""
    person_s: Input
    """Mean time until a person has found the cause and starts again."""
    diagnosis_s: Input
    """Time of the automatic diagnosis of each other failure."""
    probe_s: Input
    """Time of a probe of nodes that must pass one."""
    probe_finds: Input
    """Probability that a probe finds what is broken in a node."""
    replacement_s: Input
    """Mean time until a broken node is repaired or replaced."""
    returns_broken: Input
    """Probability that what comes back is the same bad machine."""
    restart_s: Input
    """Scheduler, imports, process groups."""
    load_s: Input
    """Reading a checkpoint from the file system or the store."""
    load_memory_s: Input
    """The same from the hosts' memory."""
    save_interval_s: Input | None
    """Training between two saves; None: `store/save_interval.py` chooses, as `auto` does."""
    save_stall_s: Input
    """What a save costs the training thread."""
    save_write_s: Input
    """From the stall to the commit; what fails before has no such checkpoint."""
    snapshot_steps: Input
    """Steps between snapshots in the hosts' memory; 0: none."""
    numeric_per_day: Input
    """Incidents such as loss spikes and divergences, in a day of training."""
    numeric_seen_s: Input
    """From the first sign to the finding; training goes on meanwhile."""
    numeric_person_s: Input
    """Mean time until a person has decided what to do; 0: nobody is asked."""
    planned_per_day: Input
    """Planned interruptions, such as maintenance, in a day."""
    planned_s: Input
    """How long one lasts, without the restart."""

    def listed(self) -> Iterator[tuple[str, Input]]:
        """Name and figure of each that is given."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                yield each.name, value

    def with_value(self, name: str, value: float) -> "Inputs":
        """The same with another value of one figure."""
        changed: dict[str, Any] = {name: replace(getattr(self, name), value=value)}
        return replace(self, **changed)


@dataclass(frozen=True, slots=True)
class Outage:
    """All nodes are away at once."""

    day: float
    """After the beginning."""
    days: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run on a cluster. `published` has the figure that it is to reproduce, if there is one."""

    name: str
    gpus: int
    gpus_per_node: int = 8
    spares: int
    """Nodes beside those that train."""
    days: float
    step_s: Seconds
    """Of a step with all nodes and no straggler."""
    wanted: Layout
    recipe: Recipe
    """Its `supervise`, `recover` and `monitor` sections decide; `train.steps` is its length."""
    rates: tuple[FailureRate, ...]
    inputs: Inputs
    elastic: bool
    """The run goes on with fewer replicas where nodes are too few."""
    knows_machines: bool
    """A machine that comes back under another name is recognised."""
    outages: tuple[Outage, ...] = ()
    ideal_gpus: int | None = None
    """GPUs that the published ideal duration counts, where these are not those that trained."""
    published: float | None = None
    """Effective training time as published, a share of wall time."""
    published_source: str = ""
    at_least: bool = False
    """What was published is a lower bound."""

    @property
    def nodes(self) -> int:
        """Nodes that train at full strength."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def share_of_ideal(self) -> float:
        """What a share of this run's GPU time is of the published ideal's."""
        return self.gpus / (self.ideal_gpus or self.gpus)

    @property
    def sequences(self) -> int:
        """Of a step, in the stage that has most."""
        return max(stage.sequences for stage in self.recipe.batch_stages())

    @property
    def failures_per_day(self) -> float:
        """Expected failures of the whole run in a day."""
        scale = self.inputs.failure_scale.value
        return scale * self.gpus * sum(rate.per_gpu_day for rate in self.rates)

    def with_input(self, name: str, value: float) -> "Scenario":
        """The same with another value of one input."""
        return replace(self, inputs=self.inputs.with_value(name, value))
