"""From what a dead worker left behind to a cause with its remedy."""
