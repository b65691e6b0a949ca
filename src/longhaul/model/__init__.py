"""The transformer, its switches and its gauges; nothing of updates or of parallelism."""
