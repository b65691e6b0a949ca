"""A recipe at several sizes: what to train next, and what the results say of growth. Pure."""
