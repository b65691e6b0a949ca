"""The acceptance drills: incidents that others had, done to real runs (`python -m drills`)."""
