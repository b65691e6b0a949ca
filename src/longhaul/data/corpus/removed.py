"""Where `Removed` was first; it lies beside the stages that count with it."""

from longhaul.data.removed import CHANGED, MOST_EXAMPLES, Reason, Removed

__all__ = ["CHANGED", "MOST_EXAMPLES", "Reason", "Removed"]
