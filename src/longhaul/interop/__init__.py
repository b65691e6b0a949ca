"""What connects longhaul to other programs, lazily: trackers, metrics, and a hook for incidents."""
