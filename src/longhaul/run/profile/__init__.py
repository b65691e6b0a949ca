"""`longhaul profile`: where the time of a recipe's steps goes, by torch's profiler."""
