"""Clusters: what `clusters.toml` says of them, and a launch in the words of each scheduler.

A launch and a cluster enter; scripts, manifests, commands and reasons leave. Nothing here runs a
command, reads a clock or knows of training: `run/launch/` carries out what is rendered here.
"""
