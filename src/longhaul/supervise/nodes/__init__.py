"""The nodes of a run: which they are, what was seen of them, who is used next."""
