"""What connects longhaul to other programs, lazily: trackers, metrics, a hook for incidents, and
models to and from Hugging Face's format.
"""
