"""Clusters: what `clusters.toml` says of them, and a launch in the words of each scheduler.

A launch and a cluster enter; scripts, manifests, commands and reasons leave. Nothing here runs a
command, reads a clock or knows of training: `run/launch/` carries out what is rendered here.
"""The machines that somebody sold: which of them are fit, and starting runs on them.

Enters: a node, or all nodes under the user's scheduler. Leaves: verdicts with their reasons, kept
in the node ledger. It never knows of a model or of a run's steps.
"""
