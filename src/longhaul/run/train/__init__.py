"""`longhaul train`: from what was typed to the loop, and all that steers it."""
