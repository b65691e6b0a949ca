"""A run's vital signs: gauges of every gauge step, and throughput."""
