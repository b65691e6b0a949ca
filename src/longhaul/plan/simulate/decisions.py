"""Every decision about processes and nodes of a simulated run, made by the supervisor's own code.

What a live supervisor reads from journal and node ledger is kept here as the same records; what it
would carry out is left to the simulation. The functions called are those of `supervise/`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longhaul.core.clocks import Clock
from longhaul.core.units import Seconds
from longhaul.plan.failure_rates import FailureRate
from longhaul.plan.simulate.inputs import Scenario
from longhaul.supervise.causes import Cause, Remedy, load_signatures
from longhaul.supervise.nodes.answer import (
    SILENT_CORRUPTION,
    Answer,
    MachineVerdict,
    accused,
    answer,
    counted_remedy,
    distrusted,
    of_machine,
)
from longhaul.supervise.nodes.ledger import EventIndex, Node, NodeEvent
from longhaul.supervise.nodes.placement import Machine, NodePlan, World
from longhaul.supervise.nodes.reputation import WorldSpan
from longhaul.supervise.nodes.roster import (
    LEFT_OUT_S,
    Choice,
    LeftOut,
    Standing,
    choose,
    larger,
    replaced_at_once,
)
from longhaul.supervise.ranks.progress import Phase
from longhaul.supervise.ranks.watchdog import Learned, deadline
from longhaul.supervise.restart import DAY_S, Failure, Plan, next_plan

_SPANS = 12
"""Newest attempts that the judgement of a hang is told of."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What follows a failure."""

    plan: Plan
    answer: Answer
    poisoned: frozenset[int]
    """Steps of checkpoints that must not be gone on from."""


def hang_deadline(scenario: Scenario, phase: Phase) -> Seconds:
    """How long the watchdog lets healthy ranks of this run be silent, as it has learned it."""
    settings = scenario.recipe.supervise
    learned = Learned({"step": {0: scenario.step_s}})
    return deadline(phase, learned, settings) or settings.deadline_s


class Decisions:
    """The supervisor of one simulated run, without its files and processes."""

    def __init__(self, scenario: Scenario, machines: Iterable[Machine], clock: Clock) -> None:
        self._clock = clock
        self._settings = scenario.recipe.supervise
        plan = NodePlan(self._settings, scenario.wanted, scenario.sequences, Path())
        self._standing = Standing(tuple(machines), plan, events=EventIndex())
        self._remedies: dict[str, Remedy] = {"hang": "restart"}
        for known in load_signatures():
            self._remedies.setdefault(known.cause, known.remedy)
        self._failures: list[Failure] = []
        self._node_failures: list[tuple[Node, Seconds]] = []
        self._spans: list[WorldSpan] = []

    @property
    def standing(self) -> Standing:
        """What is known now."""
        return replace(self._standing, now=self._clock.wall())

    @property
    def machines(self) -> tuple[Machine, ...]:
        """All nodes that the run may use."""
        return self._standing.machines

    @property
    def slow(self) -> frozenset[str]:
        """Names of the nodes that are known to be slow."""
        return self._standing.slow

    def choose(self) -> Choice:
        """The nodes of the next attempt."""
        return choose(self.standing)

    def begin(self, world: World) -> None:
        """An attempt begins on these nodes."""
        before, names = frozenset(self._standing.before), frozenset(world.names)
        if before != names:
            for machine in self.machines:
                if machine.name in names and machine.name not in before:
                    self.remember("joined", machine)
                elif machine.name in before and machine.name not in names:
                    self.remember("left", machine)
        self._standing = replace(self._standing, before=names)
        self._spans = [*self._spans[-_SPANS:], WorldSpan(tuple(m.node for m in world.machines), 0)]

    def probed(self, machine: Machine, passed: bool) -> None:
        """A probe has come to its end."""
        reason = "" if passed else "it computes wrong, or does not answer"
        self.remember("probed", machine, passed=passed, reason=reason)
        suspects = self._standing.suspects - {machine.name}
        self._standing = replace(self._standing, suspects=suspects)

    def gone(self, machine: Machine, reason: str) -> None:
        """A node does not answer any more."""
        self._standing = replace(self._standing, gone={**self._standing.gone, machine.name: reason})

    def back(self, machine: Machine) -> None:
        """It answers again, repaired."""
        kept = {name: why for name, why in self._standing.gone.items() if name != machine.name}
        slow = self._standing.slow - {machine.name}
        self._standing = replace(self._standing, gone=kept, slow=slow)

    def replaced(self, machine: Machine, new: Machine) -> None:
        """Another machine has come in the place of one."""
        self.back(machine)
        kept = tuple(m for m in self.machines if m.name != machine.name)
        suspects = self._standing.suspects - {machine.name}
        self._standing = replace(self._standing, machines=(*kept, new), suspects=suspects)

    def named_slow(self, machine: Machine) -> None:
        """The watch for stragglers has named a node."""
        self._standing = replace(self._standing, slow=self._standing.slow | {machine.name})
        self.remember("failed", machine, cause="straggler")

    def replaced_at_once(self, world: World) -> list[str]:
        """Slow nodes for whose sake the run starts again now."""
        return replaced_at_once(self.standing, world)

    def larger(self, world: World) -> World | None:
        """What a world that is too small can grow to now."""
        return larger(self.standing, world)

    def remember(self, kind: Any, machine: Machine, **what: Any) -> None:
        """Add to the node ledger."""
        events = self._standing.events
        assert isinstance(events, EventIndex)
        parts = what.pop("parts", tuple(sorted(machine.node.parts)))
        now = self._clock.wall()
        events.add(NodeEvent(kind=kind, parts=parts, host=machine.name, time=now, **what))

    def cause_of(self, rate: FailureRate, world: World, machine: Machine) -> Cause:
        """The failure as its signature tells it."""
        remedy = self._remedies[rate.signature]
        rank = world.ranks(machine)[0]
        return Cause(rate.signature, rate.cause, remedy, rank)

    def failed(
        self,
        cause: Cause,
        world: World,
        usable: Sequence[int],
        begin: int,
        reached: int | None,
        verdict: MachineVerdict | None = None,
    ) -> Judged:
        """What follows the end of an attempt that began at a step and reached another; None: it
        did not get as far as training.
        """
        now = self._clock.wall()
        cause = accused(cause, verdict)
        poisoned = frozenset[int]()
        if cause.name == SILENT_CORRUPTION and verdict is not None:
            poisoned = frozenset(distrusted(list(usable), verdict))
        left = [step for step in usable if step not in poisoned]
        made = max(0, (reached or 0) - begin) if reached is not None else 0
        self._spans[-1] = replace(self._spans[-1], steps_made=made, hung=cause.name == "hang")
        said = answer(cause, world, self._spans, self._node_failures, verdict, now)
        remedy, cordoned = counted_remedy(cause, others=True), next(iter(said.cordoned), "")
        failure = Failure(cause.name, remedy, reached, now, cordoned=cordoned)
        plan = next_plan([*self._failures, failure], left, 1, self._settings)
        went_back = plan.poison is not None
        self._failures.append(replace(failure, went_back=went_back))
        self._failures = [f for f in self._failures if now - f.time <= 2 * DAY_S]
        self._carry_out(said, cause, now)
        if plan.poison is not None:
            poisoned |= {plan.poison}
        return Judged(plan, said, poisoned)

    def _carry_out(self, said: Answer, cause: Cause, now: Seconds) -> None:
        named = {machine.name: machine for machine in self.machines}
        if said.node is not None:
            self._node_failures.append((said.node.node, now))
            self._node_failures = [f for f in self._node_failures if now - f[1] <= DAY_S]
            if of_machine(cause):
                self.remember("failed", said.node, cause=cause.name, reason=said.reason)
        for name, parts in said.cordoned.items():
            self.remember("cordoned", named[name], parts=parts, reason=said.reason)
        out = [left for left in self._standing.left_out if now - left.time < LEFT_OUT_S]
        out += [LeftOut(named[name].node, said.reason, now) for name in said.left_out]
        suspects = self._standing.suspects | set(said.suspects)
        self._standing = replace(self._standing, left_out=tuple(out), suspects=suspects)
