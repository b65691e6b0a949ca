"""The nodes of a simulated run: which are broken or slow, what breaks next, when repairs end."""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Final

import simpy

from longhaul.core.units import Seconds
from longhaul.plan.failure_rates import DAY_S, FailureRate
from longhaul.plan.simulate.decisions import Decisions
from longhaul.plan.simulate.inputs import Scenario
from longhaul.supervise.nodes.answer import MachineVerdict
from longhaul.supervise.nodes.ledger import node_of
from longhaul.supervise.nodes.placement import Machine, World

Steps = Generator[simpy.Event, Any, Any]
"""A process of simpy."""
NODE_GONE: Final = "node-gone"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something has broken on a node."""

    rate: FailureRate
    machine: Machine
    verdict: MachineVerdict | None = None
    """What ranks found when they compared; None for what shows by itself."""


class SimulatedClock:
    """The time of a simulation, from a moment in 2024 on."""

    def __init__(self, environment: simpy.Environment) -> None:
        self._environment = environment

    def wall(self) -> Seconds:
        """Seconds since 1970."""
        return 1_704_067_200.0 + self.monotonic()

    def monotonic(self) -> Seconds:
        """Seconds since the simulation began."""
        return float(self._environment.now)


def machines_of(scenario: Scenario) -> list[Machine]:
    """All nodes, the spares last."""
    count = scenario.nodes + scenario.spares
    return [_machine(n, scenario.gpus_per_node, n >= scenario.nodes) for n in range(count)]


def _machine(number: int, slots: int, spare: bool = False, ordered: bool = False) -> Machine:
    name = f"node-{number:05d}"
    node = node_of(name, (f"board:{number:05d}",))
    return Machine(name, slots, node, spare=spare, imitated=True, ordered=ordered)


class Cluster:
    """What is true of the nodes, whether anybody knows it or not."""

    def __init__(
        self,
        environment: simpy.Environment,
        scenario: Scenario,
        seed: int,
        decisions: Decisions,
        strike: Callable[[Fault], None],
    ) -> None:
        self.environment, self.decisions = environment, decisions
        self.world: World | None = None
        """The nodes that train, or trained last."""
        self.broken: dict[str, FailureRate] = {}
        """Name → what is broken in it for good."""
        self.slow: set[str] = set()
        self.refused = 0
        """Machines that came back broken and were recognised."""
        self.changed = environment.event()
        """Comes, and is another one then, when a node is there again."""
        self._scenario, self._strike = scenario, strike
        self._random = random.Random(f"{seed} repairs")
        self._probes = random.Random(f"{seed} probes")
        self._in_repair: set[str] = set()
        self._next = scenario.nodes + scenario.spares
        for number, rate in enumerate(scenario.rates):
            environment.process(self._faults(rate, random.Random(f"{seed} faults {number}")))

    def _faults(self, rate: FailureRate, chance: random.Random) -> Steps:
        scale = self._scenario.inputs.failure_scale.value
        per_second = scale * rate.per_gpu_day * self._scenario.gpus / DAY_S
        while per_second > 0:
            yield self.environment.timeout(chance.expovariate(per_second))
            place = chance.random()
            if self.world is None:
                continue
            machine = self.world.machines[int(place * len(self.world.machines))]
            if rate.shows == "straggler":
                self.slow.add(machine.name)
            elif rate.lasting:
                self.broken.setdefault(machine.name, rate)
            self._strike(Fault(rate, machine))

    def broken_in(self, world: World) -> Fault | None:
        """What keeps a world from training."""
        if not self.broken:
            return None
        named = {machine.name: machine for machine in world.machines}
        for name, rate in self.broken.items():
            if name in named and rate.shows != "silent":
                return Fault(rate, named[name])
        return None

    def probe(self, machine: Machine) -> bool:
        """Whether a node passes a probe; one that does not is repaired."""
        bad = machine.name in self.broken or machine.name in self.slow
        found = self._probes.random() < self._scenario.inputs.probe_finds.value
        passed = not (bad and found)
        self.decisions.probed(machine, passed)
        if not passed:
            self.repair(machine)
        return passed

    def repair(self, machine: Machine) -> None:
        """Have a node repaired or replaced, unless that is going on."""
        if machine.name not in self._in_repair:
            self._in_repair.add(machine.name)
            self.decisions.gone(machine, "it is being repaired")
            self.environment.process(self._repaired(machine))

    def _repaired(self, machine: Machine) -> Steps:
        inputs = self._scenario.inputs
        while True:
            mean_s = max(inputs.replacement_s.value, 1.0)
            yield self.environment.timeout(self._random.expovariate(1 / mean_s))
            same = self._random.random() < inputs.returns_broken.value
            if same and self._scenario.knows_machines:
                self.refused += 1  # its parts are cordoned, whatever it calls itself
                continue
            break
        fault = self.broken.pop(machine.name, None)
        self.slow.discard(machine.name)
        self._in_repair.discard(machine.name)
        new = replace(
            _machine(self._next, self._scenario.gpus_per_node, ordered=True), spare=machine.spare
        )
        self._next += 1
        if same and fault is not None:
            self.broken[new.name] = fault
        self.decisions.replaced(machine, new)
        self.changed.succeed()
        self.changed = self.environment.event()
