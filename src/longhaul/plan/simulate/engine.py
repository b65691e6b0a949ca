"""One simulated run from its first allocation of nodes to its end: a process of simpy that trains,
saves, is interrupted, and does what the supervisor's and the policy's own code decide.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import simpy

from longhaul.core.units import Seconds
from longhaul.plan.failure_rates import DAY_S
from longhaul.plan.simulate.cluster import (
    NODE_GONE,
    Cluster,
    Fault,
    SimulatedClock,
    Steps,
    machines_of,
)
from longhaul.plan.simulate.decisions import Decisions, hang_deadline
from longhaul.plan.simulate.inputs import Scenario
from longhaul.plan.simulate.interruptions import Drain, Incident, Interruptions, Pause
from longhaul.plan.simulate.numbers import Numbers
from longhaul.plan.simulate.outcome import Outcome, Result
from longhaul.plan.simulate.progress import Progress
from longhaul.plan.simulate.saves import Saves
from longhaul.store.save_interval import best_interval
from longhaul.supervise.nodes.answer import MachineVerdict
from longhaul.supervise.nodes.placement import World
from longhaul.supervise.ranks.stragglers import WINDOW_STEPS

_LOOK_AGAIN_S: Seconds = 600.0
"""How often nodes are chosen again while there are too few: what was left out may be used again."""
_STRAGGLER_STEPS = WINDOW_STEPS + 16
"""Steps until a straggler is named, at most (`ranks/stragglers.py`)."""
_TIMED_STEPS = 64


class SimulatedRun:
    """One run with one seed."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario, self._inputs, self._seed = scenario, scenario.inputs, seed
        self._env = simpy.Environment()
        clock = SimulatedClock(self._env)
        self._decisions = Decisions(scenario, machines_of(scenario), clock)
        self._cluster = Cluster(self._env, scenario, seed, self._decisions, self._strike)
        blocks = scenario.sequences
        self._saves = Saves(int(self._inputs.snapshot_steps.value), blocks)
        self._numbers = Numbers(scenario.recipe, blocks, scenario.step_s, clock)
        self._progress = Progress(clock, scenario.step_s)
        self._people = random.Random(f"{seed} people")
        self._main: simpy.Process | None = None
        self._interruptible = False
        self._late: list[object] = []
        """What came while a save could not be interrupted."""
        self._pauses: list[Pause] = []
        self._attempt = 0
        self._failures: Counter[str] = Counter()
        self._asked = self._incidents = self._rollbacks = 0
        self._shrunk_s = 0.0

    def simulate(self) -> Outcome:
        """Run to the last step, or to the end of the days."""
        env = self._env
        self._main = env.process(self._run())
        come = Interruptions(env, self._scenario, self._seed, self._interrupt, self._training)
        come.begin()
        env.process(self._sample())
        env.run(until=self._main | env.timeout(self._scenario.days * DAY_S))
        return Outcome(
            seed=self._seed,
            seconds=self._progress.close(),
            failures=dict(self._failures),
            restarts=self._attempt - 1,
            people=self._asked,
            numeric=self._incidents,
            rollbacks=self._rollbacks,
            refused=self._cluster.refused,
            shrunk_s=self._shrunk_s,
            course=tuple(self._progress.course),
        )

    def _run(self) -> Steps:
        total = self._scenario.recipe.total_steps()
        what: object = None
        world: World | None = None
        while total is None or self._progress.step < total:
            if world is None:
                yield from self._take_pauses()
                world = yield from self._allocate()
                what = yield from self._start(world)
                if isinstance(what, Fault):
                    yield from self._answer(what, world, None)
                    world = None
                    continue
            what = yield from self._train(world, total)
            match what:
                case Fault():
                    yield from self._answer(what, world, int(self._progress.step))
                    world = None
                case Incident():
                    yield from self._cure(what)
                case Pause():
                    self._pauses.append(what)
                    if what.planned:
                        yield from self._save()
                    else:
                        self._saves.memory_lost()
                    world = None
                case Drain():
                    yield from self._save()
                    world = None

    def _take_pauses(self) -> Steps:
        while self._pauses:
            pause = self._pauses.pop(0)
            self._progress.book("planned" if pause.planned else "outage")
            yield self._env.timeout(pause.seconds)

    def _allocate(self) -> Steps:
        """The nodes of the next attempt; spares that were idle have been probed beside training."""
        while True:
            choice = self._decisions.choose()
            short = choice.world is None or (choice.world.shrunk and not self._scenario.elastic)
            if choice.world is None or short:
                self._progress.book("nodes")
                yield self._cluster.changed | self._env.timeout(_LOOK_AGAIN_S)
            elif choice.probe:
                trained = self._cluster.world.names if self._cluster.world else ()
                if {machine.name for machine in choice.probe} & set(trained):
                    self._progress.book("diagnosis")
                    yield self._env.timeout(self._inputs.probe_s.value)
                for machine in choice.probe:
                    self._cluster.probe(machine)
            else:
                self._replace_slow(choice.world)
                return choice.world

    def _replace_slow(self, world: World) -> None:
        if not self._cluster.slow:
            return
        named = {machine.name: machine for machine in self._decisions.machines}
        for name in self._cluster.slow - set(world.names):
            if name in named:
                self._cluster.repair(named[name])

    def _start(self, world: World) -> Steps:
        """Start on these nodes, from the newest state that they can have; a fault if they fail."""
        inputs, before = self._inputs, self._cluster.world
        self._attempt += 1
        if before is None or before.names != world.names:
            self._saves.memory_lost()
        self._decisions.begin(world)
        self._cluster.world = world
        newest = max(self._saves.usable())
        snapshot = self._saves.newest_snapshot(int(self._progress.step))
        load_s = inputs.load_s.value
        if snapshot is not None and snapshot > newest:
            newest, load_s = snapshot, inputs.load_memory_s.value
        self._progress.book("restart")
        yield self._env.timeout(inputs.restart_s.value + (load_s if newest else 0.0))
        if (fault := self._cluster.broken_in(world)) is not None:
            return fault
        self._go_back(min(newest, int(self._progress.step)))
        return None

    def _go_back(self, step: int) -> None:
        if step < self._progress.step:
            self._progress.go_back(step)
            self._numbers.gone_back(step)
            self._saves.gone_back(step)
        self._saves.memory_begins(step)

    def _train(self, world: World, total: int | None) -> Steps:
        """Train and save until something comes."""
        progress, began = self._progress, self._env.now
        self._begin = int(progress.step)
        self._late.clear()
        interval = self._interval_steps()
        try:
            while total is None or progress.step < total:
                end = progress.step + interval
                end = end if total is None else min(end, total)
                came = yield from self._train_to(end, world)
                if came is not None:
                    return came
                yield from self._save()
                if self._late:
                    return self._late.pop(0)
        finally:
            if world.shrunk:
                self._shrunk_s += self._env.now - began
        return None

    def _train_to(self, end: float, world: World) -> Steps:
        progress = self._progress
        while progress.step < end:
            progress.train(self._pace(world))
            self._interruptible = True
            try:
                yield self._env.timeout((end - progress.step) * progress.pace_s)
                progress.stop_at(end)
            except simpy.Interrupt as interrupt:
                progress.stop()
                if interrupt.cause is not None:
                    return interrupt.cause
            finally:
                self._interruptible = False
        return None

    def _pace(self, world: World) -> Seconds:
        """Of a step: all wait for the slowest, and fewer replicas compute more each."""
        wanted, sequences = self._scenario.wanted.data_size, self._scenario.sequences
        rounds = -(-sequences // world.layout.data_size) / -(-sequences // wanted)
        slow = self._cluster.slow and not self._cluster.slow.isdisjoint(world.names)
        return (
            self._scenario.step_s
            * rounds
            * (max(1.0, self._inputs.straggler_slowdown.value) if slow else 1.0)
        )

    def _interval_steps(self) -> int:
        if self._inputs.save_interval_s is not None:
            return max(1, round(self._inputs.save_interval_s.value / self._scenario.step_s))
        return best_interval(
            stalls_s=[self._inputs.save_stall_s.value],
            saves_s=[self._inputs.save_write_s.value],
            steps_s=[self._scenario.step_s] * _TIMED_STEPS,
            failures=sum(self._failures.values()),
            uptime_s=float(self._env.now),
            devices=self._scenario.gpus,
        ).steps

    def _save(self) -> Steps:
        self._progress.book("save stalls")
        yield self._env.timeout(self._inputs.save_stall_s.value)
        step, now = int(self._progress.step), float(self._env.now)
        self._saves.add(step, now + self._inputs.save_write_s.value)
        if self._numbers.is_look_due(step):
            self._numbers.look(step, self._saves.states(step, now))

    def _interrupt(self, what: object) -> None:
        if self._interruptible and self._main is not None and self._main.is_alive:
            self._interruptible = False
            self._main.interrupt(what)
        elif isinstance(what, Pause):
            self._pauses.append(what)
        elif what is not None:
            self._late.append(what)

    def _strike(self, fault: Fault) -> None:
        match fault.rate.shows:
            case "crash" | "hang":
                self._interrupt(fault)
            case "silent":
                self._env.process(self._compare(fault))
            case "straggler":
                self._interrupt(None)  # the pace is another one from now on
                self._env.process(self._watch(fault))

    def _compare(self, fault: Fault) -> Steps:
        """Ranks compare what they hold alike, and find the one that computes wrong."""
        every = max(1, self._scenario.recipe.monitor.hash_every)
        step, seen = self._progress.step, self._inputs.silent_seen_s
        sound = int(step // every * every)
        left_s = (sound + every - step) * self._scenario.step_s
        yield self._env.timeout(seen.value if seen is not None else left_s)
        world = self._cluster.world
        if world is not None and fault.machine.name in world.names:
            ranks = tuple(world.ranks(fault.machine))
            verdict = MachineVerdict("corrupt", ranks, "replicas differ", sound)
            self._interrupt(replace(fault, verdict=verdict))

    def _watch(self, fault: Fault) -> Steps:
        """A straggler is named, and leaves now if that is wanted and possible."""
        seen = self._inputs.straggler_seen_s
        steps_s = _STRAGGLER_STEPS * self._scenario.step_s
        yield self._env.timeout(seen.value if seen is not None else steps_s)
        world = self._cluster.world
        slow = fault.machine.name in self._cluster.slow
        if world is None or not slow or fault.machine.name not in world.names:
            return
        self._decisions.named_slow(fault.machine)
        for machine in self._decisions.choose().probe:
            if machine.name not in world.names:
                self._cluster.probe(machine)
        if self._decisions.replaced_at_once(world):
            self._interrupt(Drain())

    def _answer(self, fault: Fault, world: World, reached: int | None) -> Steps:
        """See a failure, find its cause, and decide what follows."""
        rate, failed_at = fault.rate, float(self._env.now)
        self._failures[rate.cause] += 1
        self._progress.book("detection")
        yield self._env.timeout(self._seen_s(fault, reached))
        self._saves.forget_after(failed_at)
        if self._people.random() < self._inputs.manual_share.value:
            yield from self._ask(self._inputs.person_s.value)
        else:
            self._progress.book("diagnosis")
            yield self._env.timeout(self._inputs.diagnosis_s.value)
        if rate.lasting and rate.signature == NODE_GONE:
            self._decisions.gone(fault.machine, "it does not answer")
            self._cluster.repair(fault.machine)
        cause = self._decisions.cause_of(rate, world, fault.machine)
        begin = self._begin if reached is not None else 0
        judged = self._decisions.failed(
            cause, world, self._saves.usable(), begin, reached, fault.verdict
        )
        self._saves.poison(judged.poisoned)
        named = {machine.name: machine for machine in self._decisions.machines}
        for name in (*judged.answer.cordoned, *judged.answer.left_out):
            if name in judged.answer.cordoned or name in self._cluster.broken:
                self._cluster.repair(named[name])
        if rate.lasting or fault.verdict is not None:
            self._saves.memory_lost()
        if not judged.plan.restart:
            yield from self._ask(self._inputs.person_s.value)
        elif judged.plan.wait_s:
            self._progress.book("restart")
            yield self._env.timeout(judged.plan.wait_s)

    def _seen_s(self, fault: Fault, reached: int | None) -> Seconds:
        if fault.rate.shows == "hang":
            if self._inputs.hang_seen_s is not None:
                return self._inputs.hang_seen_s.value
            return hang_deadline(self._scenario, "step" if reached is not None else "start-up")
        if fault.verdict is not None:
            return 0.0
        return self._inputs.crash_seen_s.value

    def _ask(self, mean_s: Seconds) -> Steps:
        self._asked += 1
        self._progress.book("people")
        yield self._env.timeout(self._people.expovariate(1 / mean_s) if mean_s else 0.0)

    def _cure(self, incident: Incident) -> Steps:
        """What the policy decides about the numbers, and its price in time."""
        step, now, inputs = int(self._progress.step), float(self._env.now), self._inputs
        self._incidents += 1
        by_hand = inputs.numeric_person_s.value > 0
        if by_hand:
            yield from self._ask(inputs.numeric_person_s.value)
        states = self._saves.states(step, now)
        cure = self._numbers.incident(incident.kind, incident.first_step, step, states)
        if cure is None:
            return
        if cure.replayed_steps and not by_hand:
            self._progress.book("diagnosis")
            yield self._env.timeout(cure.replayed_steps * self._scenario.step_s)
        if cure.plan.stop and not by_hand:
            yield from self._ask(inputs.person_s.value)
        to = cure.plan.rollback
        if to is None:
            return
        self._rollbacks += 1
        self._progress.book("restart")
        load_s = inputs.load_memory_s.value if to.where == "memory" else inputs.load_s.value
        yield self._env.timeout(load_s + (inputs.restart_s.value if by_hand else 0.0))
        self._go_back(min(to.step, step))

    def _training(self) -> tuple[int, int] | None:
        return (self._attempt, int(self._progress.step)) if self._interruptible else None

    def _sample(self) -> Steps:
        while True:
            self._progress.sample()
            yield self._env.timeout(self._scenario.days * DAY_S / 240)


def simulate(scenario: Scenario, seeds: Sequence[int]) -> Result:
    """The same scenario once with each seed; a seed has the same failures in every scenario of the
    same size and rates, so that two of them can be compared.
    """
    return Result(scenario, tuple(SimulatedRun(scenario, seed).simulate() for seed in seeds))
