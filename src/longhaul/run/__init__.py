"""One folder a command: where stages are wired together."""
