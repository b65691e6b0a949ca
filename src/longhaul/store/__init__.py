"""Checkpoints as folders: manifest, commit, catalogue, health, retention. Imports no torch."""
