"""Judging a trained model: losses on any text, tasks of lm-evaluation-harness, checkpoints as they
appear. What it reads of a run it never changes.
"""
