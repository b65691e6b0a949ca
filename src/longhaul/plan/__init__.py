"""What a run will need, computed from its recipe alone. Imports no torch."""
