"""What a run needs, where its time goes and how it grows, by arithmetic. Imports no torch."""
