"""Composition roots: each file wires stages together for one command."""
