"""Looking after nodes while they train; what may take its time is asked in other processes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from longhaul.core.events import EventKind
from longhaul.core.faults import Point, point
from longhaul.core.units import Seconds
from longhaul.supervise.causes import LATELY_S, Cause, Signature, kernel_lines
from longhaul.supervise.nodes.answer import MachineVerdict
from longhaul.supervise.nodes.fleet import Fleet
from longhaul.supervise.nodes.history import Verdicts
from longhaul.supervise.nodes.ledger import cordons
from longhaul.supervise.nodes.placement import Machine, World
from longhaul.supervise.nodes.qualify import (
    ERRORS,
    Answer,
    Inquiry,
    corrected_in,
    own_words,
    probe_of,
)
from longhaul.supervise.nodes.reputation import after_corrected_errors
from longhaul.supervise.nodes.roster import choose, larger, must_be_probed, replaced_at_once

_CALL_EVERY_S: Seconds = 10.0
"""How often those that are not in the world are asked whether they are there again."""
_COUNT_EVERY_S: Seconds = 60.0
"""How often counters of errors are read: each time that starts a Python on each node."""


@dataclass(frozen=True, slots=True)
class Drain:
    """A restart that is wanted."""

    reason: str
    node: str = ""
    """Whom to go on without."""
    at_once: bool = False
    """Not only at the next checkpoint."""


class NodeHealthMonitor:
    """Looks after the nodes of one attempt; `signatures` tell what a kernel's message means."""

    def __init__(self, fleet: Fleet, signatures: Sequence[Signature]) -> None:
        assert fleet.world is not None
        self._fleet = fleet
        self._world: World = fleet.world
        self._kernel = [s for s in signatures if s.kernel and not (s.text or s.exit or s.signal)]
        self._clock = fleet.run.clock
        self._verdicts = Verdicts(fleet.run.folder, fleet.run.lease.attempt)
        self._began = self._called = self._counted = self._clock.monotonic()
        self._tried = self._read = -_CALL_EVERY_S
        self._leaving: set[str] = set()
        """Names of those that are to leave, or would if they could."""
        self._seen: dict[str, int] = {}
        """Name → messages of its kernel that were looked at."""
        self._counts: dict[str, dict[str, int]] = {}
        """Name → its counters at the last reading."""
        self._counting: dict[str, Inquiry] = {}
        self._calling: dict[str, Inquiry] = {}
        self._probing: dict[str, Inquiry] = {}

    def look(self) -> Cause | Drain | None:
        """What came since the last look: a cause to end the attempt now, or a restart to come."""
        now = self._clock.monotonic()
        for machine in self._world.machines:
            if cause := self._read_messages(machine):
                return cause
        if cause := self._count(now):
            return cause
        looks = (self._piled_up(), self._cordoned(now), self._slow(now), self._others(now))
        return next((drain for drain in looks if drain is not None), None)

    def messages(self, machine: Machine) -> list[str]:
        """What a node's kernel has said lately in this attempt, as far as it can be read here."""
        said = self._injected(machine)
        if machine.imitated or machine.command:
            return said
        since = max(self._began, self._clock.monotonic() - LATELY_S)
        return [*kernel_lines(since), *said]

    def close(self) -> None:
        """End what was asked and is not answered yet."""
        asked = (self._counting, self._calling, self._probing)
        for inquiry in chain.from_iterable(inquiries.values() for inquiries in asked):
            inquiry.close()

    def _read_messages(self, machine: Machine) -> Cause | None:
        """Count corrected errors; another one ends the attempt. `_count` reads real kernels."""
        said = self._injected(machine)
        new = said[self._seen.get(machine.name, 0) :]
        self._seen[machine.name] = len(said)
        if count := corrected_in("\n".join(new)):
            self._fleet.remember("corrected", machine, count=count)
        return self._cause(machine, new)

    def _injected(self, machine: Machine) -> list[str]:
        return point(Point.KERNEL_LOG, [], since=self._began, node=machine.name)

    def _cause(self, machine: Machine, messages: Sequence[str]) -> Cause | None:
        for message in messages:
            known = next((s for s in self._kernel if re.search(s.kernel, message)), None)
            if known is not None and known.remedy == "cordon":
                rank = self._world.ranks(machine)[0]
                return Cause(known.cause, known.meaning, "cordon", rank, False, message,
                             "a message of its kernel")  # fmt: skip
        return None

    def _count(self, now: Seconds) -> Cause | None:
        real = [machine for machine in self._world.machines if not machine.imitated]
        if now - self._counted > _COUNT_EVERY_S and not self._counting:
            since, self._counted = self._counted, now
            for machine in real:
                lines = [] if machine.command else kernel_lines(since)
                if cause := self._cause(machine, lines):
                    return cause
            self._counting = {
                m.name: Inquiry(own_words(m.command, ERRORS), _COUNT_EVERY_S) for m in real
            }
        for name, answer in _answered(self._counting):
            if not answer.came or not answer.body:
                continue
            counts = {key: int(answer.body[key]) for key in ("corrected", "uncorrected")}
            before = self._counts.setdefault(name, counts)
            self._counts[name] = counts
            machine = self._fleet.census.named(name)
            if (gained := counts["corrected"] - before["corrected"]) > 0:
                self._fleet.remember("corrected", machine, count=gained)
            if counts["uncorrected"] > before["uncorrected"]:
                said = f"{name} counts {counts['uncorrected']} errors of memory not corrected"
                rank = self._world.ranks(machine)[0]
                return Cause("ecc-uncorrectable", "memory lost data", "cordon", rank, False, said,
                             "a counter")  # fmt: skip
        return None

    def _leaves(self, machine: Machine, reason: str, without: str, node: str = "") -> Drain | None:
        """A restart without a machine, unless that was tried already or the run cannot."""
        if not reason or machine.name in self._leaving:
            return None
        self._leaving.add(machine.name)
        if self._fleet.can_do_without(machine.name):
            return Drain(reason, node)
        self._fleet.run.say(f"WARNING: {without}")
        return None

    def _piled_up(self) -> Drain | None:
        if not self._fleet.corrected:
            return None
        events, now = self._fleet.events(), self._clock.wall()
        for machine in self._world.machines:
            reason = after_corrected_errors(machine.node, events, now)
            without = (
                f"{machine.name} corrects more errors of its memory than healthy memory has, and "
                "the run cannot do without it"
            )
            if drain := self._leaves(machine, reason, without, machine.name):
                return drain
        return None

    def _cordoned(self, now: Seconds) -> Drain | None:
        if now - self._read < _CALL_EVERY_S:
            return None
        self._read = now
        active = cordons(self._fleet.events())
        for machine in self._world.machines:
            reason = ""
            if bad := sorted(machine.node.shares(active)):
                event = active[bad[0]]
                by = f" by {event.who}" if event.who else ""
                reason = f"{machine.name} has been cordoned{by}: {event.reason}"
            without = f"{reason}; the run cannot do without it, and does not start again with it"
            if drain := self._leaves(machine, reason, without):
                return drain
        return None

    def _slow(self, now: Seconds) -> Drain | None:
        for verdict in self._verdicts.new():
            if verdict.kind == "straggler":
                self._note_slow(verdict)
        slow_here = self._fleet.slow & set(self._world.names)
        if not slow_here or not self._fleet.plan.settings.replace_stragglers:
            return None
        if now - self._tried < _CALL_EVERY_S:
            return None
        self._tried = now
        if out := replaced_at_once(self._fleet.standing(), self._world):
            return Drain(f"{', '.join(out)} is slow, and another node is there", at_once=True)
        return None

    def _note_slow(self, verdict: MachineVerdict) -> None:
        for machine in {self._world.machine_of(rank) for rank in verdict.ranks}:
            if machine.name in self._fleet.slow or len(self._world.machines) == 1:
                continue
            self._fleet.slow.add(machine.name)
            self._fleet.remember("failed", machine, cause="straggler", reason=verdict.reason)
            self._fleet.emit(EventKind.NODE_SLOW, 0, node=machine.name, reason=verdict.reason)
            self._fleet.run.say(
                f"node {machine.name} is slow ({verdict.reason}): a spare takes its place at the "
                "next restart, if there is one"
            )

    def _others(self, now: Seconds) -> Drain | None:
        """Ask those that are not there whether they are; probe spares; grow if that is possible."""
        for name, answer in _answered(self._calling):
            self._fleet.census.answered(name, answer)
        for name, answer in _answered(self._probing):
            self._fleet.probed(self._fleet.census.named(name), probe_of(answer))
        came = self._fleet.delivered()
        everybody = len(self._fleet.census.machines) == len(self._world.machines)
        if everybody or (now - self._called < _CALL_EVERY_S and not came):
            return None
        self._called = now
        self._ask()
        if not self._world.shrunk or self._probing:
            return None
        world = larger(self._fleet.standing(), self._world)
        if world is None:
            return None
        back = ", ".join(sorted(set(world.names) - set(self._world.names)))
        ranks = f"{world.layout.size} ranks instead of {self._world.layout.size}"
        return Drain(f"{back} can be used: {ranks}")

    def _ask(self) -> None:
        census = self._fleet.census
        for machine in [m for m in census.machines if m.name not in self._world.names]:
            if machine.name in self._calling or machine.name in self._probing:
                continue
            if machine.command:
                self._calling[machine.name] = census.question(machine)
            else:
                census.answered(machine.name, None)
        # A node that is to take another one's place at once must have been probed before.
        standing = self._fleet.standing()
        choice = choose(standing)
        spares = (census.named(name) for name, why in choice.absent.items() if why == "a spare")
        unproven = [machine for machine in spares if must_be_probed(machine, standing)]
        for machine in (*unproven, *choice.probe):
            if machine.name not in self._probing and machine.name not in self._world.names:
                self._probing[machine.name] = self._fleet.probe(machine)


def _answered(inquiries: dict[str, Inquiry]) -> Iterator[tuple[str, Answer]]:
    """Name and answer of those that have come; they are closed and left out from now on."""
    for name, inquiry in list(inquiries.items()):
        if (answer := inquiry.answer) is not None:
            del inquiries[name]
            inquiry.close()
            yield name, answer
