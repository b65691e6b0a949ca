"""The transformer, its switches and its thermometers; nothing of updates or of parallelism."""
