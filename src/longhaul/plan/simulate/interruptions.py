"""What interrupts a simulated run and is no node's fault: its numbers, maintenance, outages."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import simpy

from longhaul.core.units import Seconds
from longhaul.plan.failure_rates import DAY_S
from longhaul.plan.simulate.cluster import Steps
from longhaul.plan.simulate.inputs import Outage, Scenario
from longhaul.plan.simulate.numbers import KINDS


@dataclass(frozen=True, slots=True)
class Incident:
    """Something is wrong with the numbers."""

    kind: str
    first_step: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Nobody may train for a while."""

    seconds: Seconds
    planned: bool


@dataclass(frozen=True, slots=True)
class Drain:
    """Save, and start again with other nodes."""


class Interruptions:
    """The processes that bring them.

    `interrupt` takes what comes. `training` has the attempt's number and the step while the run
    trains, and None while it does not.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        scenario: Scenario,
        seed: int,
        interrupt: Callable[[object], None],
        training: Callable[[], tuple[int, int] | None],
    ) -> None:
        self._env, self._scenario, self._inputs = environment, scenario, scenario.inputs
        self._seed, self._interrupt, self._training = seed, interrupt, training

    def begin(self) -> None:
        """Let them come from now on."""
        self._env.process(self._numeric(random.Random(f"{self._seed} numbers")))
        self._env.process(self._planned(random.Random(f"{self._seed} planned")))
        for outage in self._scenario.outages:
            self._env.process(self._outage(outage))

    def _numeric(self, chance: random.Random) -> Steps:
        """A sign; and the finding, if training went on from it undisturbed until then."""
        per_second = self._inputs.numeric_per_day.value / DAY_S
        while per_second > 0:
            yield self._env.timeout(chance.expovariate(per_second))
            kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
            at = self._training()
            if at is None:
                continue
            yield self._env.timeout(self._inputs.numeric_seen_s.value)
            now = self._training()
            if now is not None and now[0] == at[0]:
                self._interrupt(Incident(kind, at[1] + 1))

    def _planned(self, chance: random.Random) -> Steps:
        per_second = self._inputs.planned_per_day.value / DAY_S
        while per_second > 0:
            yield self._env.timeout(chance.expovariate(per_second))
            self._interrupt(Pause(self._inputs.planned_s.value, planned=True))

    def _outage(self, outage: Outage) -> Steps:
        yield self._env.timeout(outage.day * DAY_S)
        self._interrupt(Pause(outage.days * DAY_S, planned=False))
