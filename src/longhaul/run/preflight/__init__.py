"""What would fail later, said now."""
