"""What a drill injects: faults by name, rank and step, and the moments at which it strikes."""
