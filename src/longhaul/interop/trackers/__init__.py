"""Mirrors of a run's journal, each in a process of its own: records come in, and go to a tracker,
to Prometheus or to the hook for incidents. No trainer knows of them, and none can be hurt.
"""
