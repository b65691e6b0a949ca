"""The ranks of a run: how rank 0 and the others find each other and begin the same attempt.

Rank 0 has the lease, the journal and the text; the others are told everything they need, and open
the text that rank 0 has prepared.
"""

from dataclasses import dataclass
from functools import partial

from longhaul.config.recipe import Recipe
from longhaul.logbook.ledger import LedgerState
from longhaul.parallel.control import Control
from longhaul.parallel.device import own_device
from longhaul.parallel.layout import Place, layout_for
from longhaul.parallel.world import World, form_world, meet


@dataclass(frozen=True)
class Briefing:
    """What the other ranks must know before they can build anything."""

    folder: str
    """The run's, absolute; on a file system that all ranks see."""
    recipe: Recipe
    """As asked for."""
    attempt: int
    ledger: LedgerState
    threads: int | None = None
    """Of torch, in each process of the run so far."""


def lead(place: Place, briefing: Briefing) -> World:
    """Meet and brief the others, on rank 0; RecipeError, before that, if so many cannot train."""
    layout_for(briefing.recipe.parallel, place.size)
    wanted = briefing.recipe.machine.device
    control = meet(place, wanted=wanted, own=partial(own_device, place=place))
    control.share(briefing)
    return form_ranks(place, control, briefing.recipe)


def join(place: Place) -> tuple[Control, Briefing]:
    """Meet rank 0, which may take its time, and be told; on every other rank."""
    control = meet(place, own=partial(own_device, place=place))
    briefing: Briefing = control.share()
    return control, briefing


def form_ranks(place: Place, control: Control, recipe: Recipe) -> World:
    """Form the world with all others, under the layout of the recipe."""
    device = own_device(recipe.machine.device, place)
    layout = layout_for(recipe.parallel, place.size)
    timeout_s = recipe.supervise.deadlines()["collective_s"]
    return form_world(place, control, layout, device, timeout_s)
