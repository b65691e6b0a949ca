"""Runs broken on purpose, and what became of them."""
