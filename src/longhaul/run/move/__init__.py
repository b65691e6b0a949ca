"""Several clusters: runs that move from one to another, and what lies where."""
