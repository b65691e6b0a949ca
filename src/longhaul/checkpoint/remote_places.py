"""Where a run lies that does not lie here: its places in remote tiers, and what is read there."""

import json

from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.store.catalogue import Checkpoint
from longhaul.store.manifest import RefusedCheckpoint
from longhaul.store.remote import RemoteTier
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import Throttle


class StoreNeeded(LonghaulError):
    """All that is left of this run is elsewhere, and that place does not answer."""

    exit_code = ExitCode.START_AGAIN


def places_of(
    recipe: Recipe, name: str, clock: Clock | None = None, throttle: Throttle | None = None
) -> list[StoreFiles]:
    """Where a recipe has the run of this name lie elsewhere, in its order; a `RecipeError` if an
    address cannot be understood, or its package is not installed.
    """
    return [
        StoreFiles(f"{address.rstrip('/')}/{name}", clock=clock, throttle=throttle)
        for address in recipe.checkpoint.remote
    ]


def draw_of(tier: RemoteTier, checkpoint: Checkpoint) -> int | None:
    """Where a checkpoint goes on in the data; None if it does not say. A `StoreError` if the store
    does not answer.
    """
    from longhaul.checkpoint.write import FACTS_NAME  # imports torch

    try:
        facts = json.loads(tier.read(checkpoint, FACTS_NAME))["facts"]
        return int(facts["progress"]["position"]["draw"])
    except (RefusedCheckpoint, ValueError, KeyError, TypeError):
        return None
