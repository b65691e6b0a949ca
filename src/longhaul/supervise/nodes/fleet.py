"""The nodes of a run: who is there, probed, ordered, used. What is judged in `roster.py`,
`answer.py` and `reputation.py` is carried out here, and written into node ledger and journal.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from longhaul.config.recover import NodeSection
from longhaul.core.events import EventKind
from longhaul.core.units import Seconds
from longhaul.supervise.causes import Cause
from longhaul.supervise.history import SupervisedRun, usable_checkpoints
from longhaul.supervise.nodes.answer import NODE_GONE, Answer, MachineVerdict, answer, of_machine
from longhaul.supervise.nodes.census import Census, delivered, order
from longhaul.supervise.nodes.history import (
    as_data,
    left_out,
    node_events,
    node_failures,
    ordered,
    spans,
)
from longhaul.supervise.nodes.ledger import EventIndex, NodeEvent, append, read
from longhaul.supervise.nodes.placement import Machine, NodePlan, World
from longhaul.supervise.nodes.qualify import (
    Inquiry,
    Probe,
    Wait,
    probe_of,
    start_probe,
    wait_for_all,
)
from longhaul.supervise.nodes.reputation import admit
from longhaul.supervise.nodes.roster import Choice, Standing, can_do_without, choose
from longhaul.supervise.restart import PATIENCE_S

_ORDER_PATIENCE_S: Seconds = 30.0
"""So long an order is waited for before the run goes on with fewer nodes."""
_LOOK_EVERY_S: Seconds = 0.05
_CALL_EVERY_S: Seconds = 1.0
"""How often nodes without which there is no world are asked whether they are there again."""
_MOST_ORDERS = 3
"""In a row, of which none brought a node that may be used."""


class Fleet:
    """The nodes of one run, for the life of its supervisor."""

    def __init__(self, run: SupervisedRun, plan: NodePlan) -> None:
        self.run, self.plan, self.emit = run, plan, run.emit
        self.world: World | None = None
        self.slow: set[str] = set()
        self.changed = False
        """The world is another one than that of the attempt before."""
        self.corrected = False
        """Errors of memory have been seen, corrected ones."""
        self.why_none = ""
        spares_last = sorted(plan.settings.node, key=lambda entry: entry.spare)
        self.census = Census(spares_last, ordered(node_events(run.folder)))
        self._suspects: set[str] = set()
        self._before: tuple[str, ...] = ()
        self._order: Inquiry | None = None
        self._unwritten: list[NodeEvent] = []

    def allocate(self, wait: Wait) -> World | None:
        """The world of the next attempt, written down; None if there is none, or `wait` says so."""
        self.world, self.why_none = None, ""
        orders, until = 0, self.run.clock.monotonic() + PATIENCE_S
        waits = False
        while self.census.call([machine.name for machine in self.census.machines], wait):
            choice = choose(self.standing())
            short = choice.world is None or choice.world.shrunk
            if short and self.plan.settings.replace_command and orders < _MOST_ORDERS:
                orders += 1
                if self._order_another(choice, wait):
                    continue
            if choice.world is None and self._would_do() and self.run.clock.monotonic() < until:
                if not waits:
                    self.run.say(f"waiting for nodes to answer: {choice.without()}")
                    self.emit(EventKind.NODE_AWAITED, 0, reason=choice.without())
                waits = True
                if not wait(_CALL_EVERY_S):
                    return None
                self.delivered()  # another one may come before
                continue
            if choice.world is None:
                self.why_none = f"{choice.reason}; {choice.without()}"
                return None
            if choice.probe:
                if not self._probe_all(choice.probe, wait):
                    return None
                continue
            self._begin(choice)
            return choice.world
        return None

    def _would_do(self) -> bool:
        """There would be a world if the nodes that do not answer did."""
        return choose(replace(self.standing(), gone={})).world is not None

    def standing(self) -> Standing:
        """What is known now."""
        events = node_events(self.run.folder)
        return Standing(
            machines=tuple(self.census.machines),
            plan=self.plan,
            events=EventIndex(self.events()),
            before=self._before,
            gone=dict(self.census.gone),
            left_out=left_out(events),
            suspects=frozenset(self._suspects),
            slow=frozenset(self.slow),
            now=self.run.clock.wall(),
        )

    def events(self) -> tuple[NodeEvent, ...]:
        """The node ledger; what could not be written is known here at least."""
        try:
            return (*read(self.plan.ledger), *self._unwritten)
        except OSError:
            return tuple(self._unwritten)

    def _begin(self, choice: Choice) -> None:
        world = choice.world
        assert world is not None
        newest = max(usable_checkpoints(self.run.folder), default=0)
        self.emit(
            EventKind.ATTEMPT_BEGAN,
            newest,
            nodes=as_data(world),
            absent=dict(choice.absent),
            layout=str(world.layout),
            from_step=newest,
            reason=choice.reason,
        )
        if (self._before and set(world.names) != set(self._before)) or world.shrunk:
            self.run.say(f"nodes: {', '.join(world.names)} ({choice.reason})")
            for name, why in choice.absent.items():
                self.run.say(f"  without {name}: {why}")
        self.changed = world.names != self._before
        self._move(world.names)
        self.world = world

    def _move(self, names: Sequence[str]) -> None:
        for machine in self.census.machines:
            if machine.name in names and machine.name not in self._before:
                self.remember("joined", machine)
            elif machine.name not in names and machine.name in self._before:
                self.remember("left", machine)
        self._before = tuple(names)

    def remember(self, kind: Any, machine: Machine, **what: Any) -> None:
        """Add a line to the node ledger. A disk that refuses it must not end the run."""
        parts = what.pop("parts", tuple(sorted(machine.node.parts)))
        event = NodeEvent(
            kind=kind, parts=parts, host=machine.name, time=self.run.clock.wall(),
            run=self.run.folder.name, **what,
        )  # fmt: skip
        self.corrected = self.corrected or kind == "corrected"
        try:
            append(self.plan.ledger, event)
        except OSError as error:
            self._unwritten.append(event)
            self.run.say(f"WARNING: the node ledger in {self.plan.ledger} takes nothing ({error})")

    def probe(self, machine: Machine) -> Inquiry:
        """A process that probes a node."""
        return start_probe(machine.command, self.run.folder.workers, machine.slots)

    def probed(self, machine: Machine, probe: Probe) -> None:
        """Keep what a probe has found."""
        self._suspects.discard(machine.name)
        found: dict[str, Any] = {"passed": probe.passed, "reason": probe.reason}
        figures = dict(probe.figures)
        self.remember("probed", machine, data=figures, **found)
        self.emit(EventKind.NODE_PROBED, 0, node=machine.name, **found, figures=figures)
        if not probe.passed:
            self.run.say(f"node {machine.name} has not passed its probe: {probe.reason}")
        if probe.broken:
            self.remember("cordoned", machine, reason=probe.reason)

    def _probe_all(self, machines: Sequence[Machine], wait: Wait) -> bool:
        self.run.say(f"probing {', '.join(machine.name for machine in machines)}")
        self.run.folder.workers.mkdir(parents=True, exist_ok=True)
        answers = wait_for_all([self.probe(machine) for machine in machines], wait)
        if answers is None:
            return False
        for machine, said in zip(machines, answers, strict=True):
            self.probed(machine, probe_of(said))
        return True

    def _order_another(self, choice: Choice, wait: Wait) -> bool:
        """Order a node and wait a little; True if another one may be there by now."""
        lost = [m for m in self.census.machines if m.name in choice.absent]
        if self._order is None and lost:
            assert self.plan.settings.replace_command is not None
            self.run.say(f"ordering another node in place of {lost[-1].name}")
            self._order = order(self.plan.settings.replace_command, lost[-1].node)
        goes_on = choice.world is not None or self._would_do()
        patience = _ORDER_PATIENCE_S if goes_on else float("inf")
        deadline = time.monotonic() + patience
        while self._order is not None and not self.delivered():
            if time.monotonic() > deadline:
                return False
            if not wait(_LOOK_EVERY_S):
                return True  # the caller's next wait tells that somebody wants an end
        return True

    def delivered(self) -> bool:
        """Whether an order has come to an end, and with it, perhaps, another node."""
        answer = self._order.answer if self._order is not None else None
        if self._order is None or answer is None:
            return False
        self._order.close()
        self._order, result = None, delivered(answer)
        if isinstance(result, str):
            self.run.say(f"WARNING: {result}")
            self.emit(EventKind.NODE_ORDERED, 0, node=None, reason=result)
        else:
            self._receive(result)
        return True

    def _receive(self, entry: NodeSection) -> None:
        machine, reason = self.census.add(entry), ""
        slots = self.census.machines[0].slots
        self.census.call([machine.name], _sleep)
        machine = self.census.named(machine.name)
        admission = admit(machine.node, self.events(), self.run.clock.wall())
        if machine.slots != slots:
            reason = f"{machine.name} has {machine.slots} slots, the others have {slots}"
        elif admission.verdict == "refuse":
            reason = admission.reason
        if reason:
            self.census.drop(machine.name)
            self.run.say(f"refused: {reason}")
            parts = sorted(machine.node.parts)
            self.emit(EventKind.NODE_REFUSED, 0, node=machine.name, parts=parts, reason=reason)
            return
        named = entry.model_copy(update={"name": machine.name, "spare": False})
        self.emit(EventKind.NODE_ORDERED, 0, node=machine.name, reason="it has come",
                  entry=named.model_dump(mode="json"))  # fmt: skip

    def gone_of(self, wait: Wait) -> Cause | None:
        """That a node of the world has gone, if it has: what its ranks said is a consequence."""
        if self.world is None or not self.census.call(self.world.names, wait):
            return None
        for machine in self.world.machines:
            if machine.name in self.census.gone:
                said = f"{machine.name}: {self.census.gone[machine.name]}"
                rank = self.world.ranks(machine)[0]
                return Cause(NODE_GONE, "the node does not answer", "restart", rank, False, said,
                             "no answer")  # fmt: skip
        return None

    def judge(
        self, cause: Cause, reached: int | None, verdict: MachineVerdict | None
    ) -> tuple[Answer, dict[str, Any]]:
        """What follows for nodes, and what of it the journal keeps, before `carry_out`."""
        assert self.world is not None
        events = node_events(self.run.folder)
        worlds = list(spans(events))
        if worlds:  # its end is about to be written
            began = [event for event in events if event.kind == EventKind.ATTEMPT_BEGAN][-1]
            made = max(0, (reached or 0) - int(began.data["from_step"]))
            worlds[-1] = replace(worlds[-1], steps_made=made, hung=cause.name == "hang")
        past = node_failures(events)
        said = answer(cause, self.world, worlds, past, verdict, self.run.clock.wall())
        out = {name: sorted(self.census.named(name).node.parts) for name in said.left_out}
        data: dict[str, Any] = {
            "node": said.node.name if said.node else None,
            "node_parts": sorted(said.node.node.parts) if said.node else [],
            "evicted": out,
            "cordoned": {name: list(parts) for name, parts in said.cordoned.items()},
            "nodes_reason": said.reason,
        }
        return said, data

    def carry_out(self, said: Answer, cause: Cause) -> None:
        """Write into the ledger what was judged."""
        if said.node is not None and of_machine(cause):
            self.remember("failed", said.node, cause=cause.name, reason=said.reason)
        for name, parts in said.cordoned.items():
            self.remember("cordoned", self.census.named(name), parts=parts, reason=said.reason)
            self.run.say(f"  node {name} is cordoned ({', '.join(parts)}): {said.reason}")
        for name in said.left_out:
            self.run.say(f"  going on without node {name}, if the run can: {said.reason}")
        self._suspects.update(said.suspects)

    def can_do_without(self, name: str) -> bool:
        """Whether the run could go on without a node of its world."""
        return can_do_without(self.standing(), self.census.named(name))

    def drain(self, name: str) -> dict[str, Any]:
        """What the journal keeps of a restart at a checkpoint; `name` is left out, if given."""
        parts = {name: sorted(self.census.named(name).node.parts)} if name else {}
        reason = f"{name} has had too many errors of memory" if name else ""
        return {"node": name or None, "evicted": parts, "nodes_reason": reason}

    def close(self) -> None:
        """Nobody trains any more."""
        self._move(())
        if self._order is not None:
            self._order.close()


def _sleep(seconds: Seconds) -> bool:
    time.sleep(seconds)
    return True
