"""Which nodes answer, what each is known by, and another one by `supervise.replace_command`."""

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from longhaul.config.recover import NodeSection
from longhaul.core.faults import Point, point
from longhaul.core.units import Seconds
from longhaul.supervise.nodes.ledger import Node, node_of, read_node
from longhaul.supervise.nodes.placement import NODE, NODE_PARTS, Machine
from longhaul.supervise.nodes.qualify import Answer, Inquiry, Wait, own_words, wait_for_all

_ORDER_WITHIN_S: Seconds = 3600.0


def order(command: str, lost: Node) -> Inquiry:
    """Order another node in place of the one lost, which the command's environment names."""
    about = {NODE: lost.host, NODE_PARTS: ",".join(sorted(lost.parts))}
    return Inquiry(["/bin/sh", "-c", command], _ORDER_WITHIN_S, about)


def delivered(answer: Answer) -> NodeSection | str:
    """The entry of the node that an order has brought, or why there is none."""
    if not answer.came:
        return f"supervise.replace_command failed ({answer.reason})"
    try:
        return NodeSection.model_validate_json(json.dumps(_table(answer.text)))
    except ValueError as error:
        first = str(error).splitlines()[0]
        said = answer.text.strip()[:200]
        return f"supervise.replace_command printed {said!r}, which is no node ({first})"


def _table(text: str) -> dict[str, Any]:
    """A node's entry, bare or as it would stand in a recipe."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = tomllib.loads(text)
    found = found.get("supervise", found)
    if "node" in found:
        (found,) = found["node"]
    return dict(found)


_ANSWERS_WITHIN_S: Seconds = 10.0
"""A node that does not start `true` in this time is gone."""
_SAYS_WHAT_IT_IS_WITHIN_S: Seconds = 60.0


class Census:
    """The nodes that a run may use; `ordered` have come in place of others."""

    def __init__(self, entries: Iterable[NodeSection], ordered: Iterable[NodeSection]) -> None:
        self.machines = [Machine.of(entry) for entry in entries]
        self.machines += [Machine.of(entry, ordered=True) for entry in ordered]
        self.gone: dict[str, str] = {}
        """Name → why, of those that do not answer."""
        self._known: set[str] = set()
        """Names of those whose hardware was looked at."""

    def named(self, name: str) -> Machine:
        """The machine of that name."""
        return next(machine for machine in self.machines if machine.name == name)

    def add(self, entry: NodeSection) -> Machine:
        """One that has come in place of another; it gets a name of its own."""
        names = {machine.name for machine in self.machines}
        numbered = (f"{entry.name}-{number}" for number in count(2))
        name = next(name for name in chain([entry.name], numbered) if name not in names)
        machine = Machine.of(entry.model_copy(update={"name": name, "spare": False}), ordered=True)
        self.machines.append(machine)
        return machine

    def drop(self, name: str) -> None:
        """It is not wanted."""
        self.machines = [machine for machine in self.machines if machine.name != name]
        self._known.discard(name)
        self.gone.pop(name, None)

    def call(self, names: Sequence[str], wait: Wait) -> bool:
        """Find out which nodes answer, and what unknown ones are; False to end."""
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
        if not machine.imitated and machine.name not in self._known:
            return Inquiry(own_words(machine.command), _SAYS_WHAT_IT_IS_WITHIN_S)
        return Inquiry([*machine.command, "true"], _ANSWERS_WITHIN_S)

    def answered(self, name: str, answer: Answer | None) -> None:
        """Keep what came of a question; None for a node that is this machine."""
        answer = point(Point.NODE_ANSWER, answer, node=name)
        if answer is not None and not answer.came:
            self.gone[name] = f"it does not answer ({answer.reason})"
            return
        self.gone.pop(name, None)
        said, machine = answer.body if answer else {}, self.named(name)
        if machine.imitated or name in self._known:
            return
        self._known.add(name)
        # Of what it is called it speaks for itself; the run knows it by the recipe's name.
        parts = [part for part in said.get("parts", ()) if not part.startswith("host:")]
        node = node_of(name, parts) if machine.command else read_node(host=name)
        self.machines[self.machines.index(machine)] = replace(machine, node=node)
