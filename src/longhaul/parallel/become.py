"""How a module is given another way to compute while the model stays ignorant of it.

Enters: a module, a subclass of its own class. Leaves: the same module. Never knows: either.
"""

from typing import TypeVar, cast

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def become(module: nn.Module, kind: type[Module]) -> Module:
    """Let `module` compute as a subclass of its own does; its weights and their names stay."""
    assert issubclass(kind, type(module)), f"{kind.__name__} is no {type(module).__name__}"
    module.__class__ = kind
    return cast(Module, module)
