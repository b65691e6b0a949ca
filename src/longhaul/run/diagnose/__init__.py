"""Steps of a run computed again, to find why one went wrong."""
