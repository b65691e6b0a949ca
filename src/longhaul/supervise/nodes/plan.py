"""What a recipe says of nodes, for a supervisor.

Enters: a recipe, a run's folder. Leaves: a plan, or None where this machine is all there is.
Never knows: which nodes are there.
"""

from dataclasses import dataclass
from pathlib import Path

from longhaul.config.recipe import Recipe
from longhaul.config.recover import NodeSection
from longhaul.logbook.folder import RunFolder
from longhaul.parallel.layout import Layout, layout_for


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What a recipe says of nodes."""

    entries: tuple[NodeSection, ...]
    wanted: Layout
    """At full strength."""
    sequences: int
    """Of the global batch."""
    ledger: Path
    """A folder."""
    shared: bool
    """Other runs keep the same ledger."""
    replace_command: str | None = None
    replace_stragglers: bool = False


def node_plan(settings: Recipe, folder: RunFolder) -> NodePlan | None:
    """What a recipe says of nodes; None if it names none, and this machine is all there is.

    Raises:
        RecipeError: so many slots cannot train it.
    """
    asked = settings.supervise
    if not asked.node:
        return None
    slots = sum(node.slots for node in asked.node if not node.spare)
    return NodePlan(
        entries=tuple(sorted(asked.node, key=lambda node: node.spare)),
        wanted=layout_for(settings.parallel, slots),
        sequences=max(stage.sequences for stage in settings.batch_stages()),
        ledger=Path(asked.node_ledger) if asked.node_ledger else folder.path,
        shared=asked.node_ledger is not None,
        replace_command=asked.replace_command,
        replace_stragglers=asked.replace_stragglers,
    )
