"""From gradients to new weights: groups by role, the update gate, the optimizers."""
