"""Worker processes from outside: start, watch, kill. Never imports torch."""
