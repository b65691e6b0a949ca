"""Wiring of `longhaul qualify`: the battery, the node ledger, the files and the page."""
