"""`longhaul drill RECIPE`, beside `longhaul drill resume` and its like.

Enters: arguments. Leaves: the command that they mean. Never knows: what it does.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

OF_RECIPE = "RECIPE"
"""Name of the command that takes whatever is none."""
_HELP = ("--help",)


class DrillGroup(TyperGroup):
    """A group whose first word is one of its commands, or else a recipe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever, once the command of a recipe was put before a recipe."""
        if args and args[0] not in self.commands and args[0] not in _HELP:
            args = [OF_RECIPE, *args]
        return list(super().parse_args(ctx, args))


class OfRecipe(TyperCommand):
    """That command: its name stands where the recipe's own will."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Leaves its argument out, which is there already."""
        return ["[OPTIONS]"]
