"""Another node, ordered by a command of the user's (`supervise.replace_command`).

The command may take minutes: whoever orders looks from time to time, and goes on meanwhile if it
can.

Enters: a shell command, the node that was lost. Leaves: the entry of another one, or why not.
Never knows: whether that node is any good.
"""

import json
import tomllib
from typing import Any

from pydantic import ValidationError

from longhaul.config.recover import NodeSection
from longhaul.core.units import Seconds
from longhaul.supervise.nodes.identity import Node
from longhaul.supervise.nodes.inquiry import Answer, Inquiry
from longhaul.supervise.nodes.placement import NODE, NODE_PARTS

ORDER_WITHIN_S: Seconds = 3600.0


class Order:
    """An order on its way. Close it when nobody waits for it any more.

    Args:
        command: of a shell.
        lost: the node in whose place another one is wanted; the command's environment names it.
    """

    def __init__(self, command: str, lost: Node) -> None:
        self.lost = lost
        about = {NODE: lost.host, NODE_PARTS: ",".join(sorted(lost.parts))}
        self._inquiry = Inquiry(["/bin/sh", "-c", command], ORDER_WITHIN_S, about)

    @property
    def result(self) -> NodeSection | str | None:
        """The entry of another node, why there is none, or None as long as it may come."""
        answer = self._inquiry.answer
        return None if answer is None else _entry(answer)

    def close(self) -> None:
        """End the command."""
        self._inquiry.close()


def _entry(answer: Answer) -> NodeSection | str:
    if not answer.came:
        return f"supervise.replace_command failed ({answer.reason})"
    try:
        table = _table(answer.text)
        return NodeSection.model_validate_json(json.dumps(table))
    except (ValueError, ValidationError) as error:
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
