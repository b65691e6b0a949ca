"""Which nodes are there: who answers, and what each is known by.

Enters: the recipe's entries, what has come in place of others. Leaves: machines, and why some of
them do not answer.
Never knows: what was seen of nodes before, or who is used.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from longhaul.config.supervise import NodeSection
from longhaul.core.faults import Point, point
from longhaul.core.units import Seconds
from longhaul.supervise.nodes.identity import Node, read_node
from longhaul.supervise.nodes.inquiry import Answer, Inquiry, wait_for_all
from longhaul.supervise.nodes.placement import Machine
from longhaul.supervise.nodes.qualify import identity_words

ANSWERS_WITHIN_S: Seconds = 10.0
"""A node that does not start `true` in this time is gone."""
_SAYS_WHAT_IT_IS_WITHIN_S: Seconds = 60.0
"""That starts a Python."""
Wait = Callable[[Seconds], bool]
"""Lets time pass; False if somebody wants an end."""


class Census:
    """The nodes that a run may use.

    Args:
        entries: of the recipe.
        ordered: of nodes that have come in place of others.
    """

    def __init__(self, entries: Iterable[NodeSection], ordered: Iterable[NodeSection]) -> None:
        self.machines = [Machine.of(entry) for entry in entries]
        self.machines += [Machine.of(entry, ordered=True) for entry in ordered]
        self.gone: dict[str, str] = {}
        """Name → why, of those that do not answer."""
        self._unknown = {machine.name for machine in self.machines if not machine.imitated}

    def named(self, name: str) -> Machine:
        """The machine of that name."""
        return next(machine for machine in self.machines if machine.name == name)

    def add(self, entry: NodeSection) -> Machine:
        """One that has come in place of another; it gets a name of its own."""
        names, number = {machine.name for machine in self.machines}, 1
        name = entry.name
        while name in names:
            number += 1
            name = f"{entry.name}-{number}"
        machine = Machine.of(entry.model_copy(update={"name": name, "spare": False}), ordered=True)
        self.machines.append(machine)
        if not machine.imitated:
            self._unknown.add(name)
        return machine

    def drop(self, name: str) -> None:
        """It is not wanted."""
        self.machines = [machine for machine in self.machines if machine.name != name]
        self._unknown.discard(name)
        self.gone.pop(name, None)

    def call(self, names: Sequence[str], wait: Wait) -> bool:
        """Find out which of the nodes answer, and what those are that nobody knows yet; False if
        somebody wants an end.
        """
        far = [self.named(name) for name in names if self.named(name).command]
        answers = wait_for_all([self.question(machine) for machine in far], wait)
        if answers is None:
            return False
        said = {machine.name: answer for machine, answer in zip(far, answers, strict=True)}
        for name in names:
            self.answered(name, said.get(name))
        return True

    def question(self, machine: Machine) -> Inquiry:
        """A process that only finds out whether a node answers; the first time, what it is."""
        if machine.name in self._unknown:
            return Inquiry(identity_words(machine.command), _SAYS_WHAT_IT_IS_WITHIN_S)
        return Inquiry([*machine.command, "true"], ANSWERS_WITHIN_S)

    def answered(self, name: str, answer: Answer | None) -> None:
        """Keep what came of a question; None for a node that is this machine."""
        answer = point(Point.NODE_ANSWER, answer, node=name)
        if answer is not None and not answer.came:
            self.gone[name] = f"it does not answer ({answer.reason})"
        else:
            self.gone.pop(name, None)
            self._identify(name, answer.body if answer else {})

    def _identify(self, name: str, said: Mapping[str, Any]) -> None:
        if name not in self._unknown:
            return
        self._unknown.discard(name)
        machine, node = self.named(name), read_node(host=name)
        if machine.command:
            node = Node(name, tuple(said.get("gpus", ())), str(said.get("board", "")),
                        str(said.get("machine_id", "")))  # fmt: skip
        place = self.machines.index(machine)
        self.machines[place] = replace(machine, node=node)
