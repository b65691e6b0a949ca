"""What the summaries of shipped recipes promise: the cards they fit, and a disk that holds them."""

import re

import pytest

from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.size import known_vocabulary
from longhaul.parallel.layout import layout_for
from longhaul.plan.memory import checkpoint_bytes, estimate_memory
from longhaul.run.preflight.storage import checkpoints_kept

PROCESSES = {"llama-8b": 8, "opt-1.3b": 2, "opt-175b": 992, "yalm-100b": 200}
"""The fewest of those that a summary speaks of: eight, several, a thousand (OPT-175B's own 992),
hundreds. The others speak of one."""
SHARE = 0.9
"""Of a card, that preflight allows tensors (docs/preflight.md)."""
OF_A_LAPTOP = 2e9
"""Bytes that a recipe may take whose summary names no card."""
MOST_CHECKPOINTS = 20


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_fits_the_card_that_its_summary_names(name: str) -> None:
    recipe = load_recipe(name).recipe
    card = re.search(r"(\d+) GB", recipe.summary)
    room = SHARE * float(card[1]) * 1e9 if card else OF_A_LAPTOP
    vocab_size, _ = known_vocabulary(recipe)
    layout = layout_for(recipe.parallel, PROCESSES.get(name, 1))
    estimate = estimate_memory(recipe, vocab_size, layout, on_cpu=card is None)
    assert estimate.total <= room


@pytest.mark.parametrize("name", shipped_recipes())
def test_no_recipe_keeps_more_checkpoints_than_a_person_would_look_at(name: str) -> None:
    recipe = load_recipe(name).recipe
    kept = checkpoints_kept(recipe.checkpoint, recipe.total_steps())
    assert kept <= MOST_CHECKPOINTS
    # Without a card there is a laptop's disk, and not much of it.
    if "GB" not in recipe.summary:
        assert kept * checkpoint_bytes(recipe, known_vocabulary(recipe)[0]) <= OF_A_LAPTOP
