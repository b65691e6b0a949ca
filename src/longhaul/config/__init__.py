"""The recipe: what a run is asked to do, checked whole before any device is touched."""
