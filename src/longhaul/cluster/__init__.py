"""Clusters: what `clusters.toml` says of them, a launch in the words of each scheduler, and which
machines are fit.

A launch and a cluster enter; scripts, manifests, commands and reasons leave, which `run/launch/`
carries out. In `qualify/` a node enters, or all nodes under the user's scheduler; verdicts leave
with their reasons, kept in the node ledger. Nothing here knows of a model or of a run's steps.
"""
