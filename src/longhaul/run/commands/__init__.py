"""The small commands, a file each."""
