"""`longhaul data value`: small models with and without each source and filter."""
