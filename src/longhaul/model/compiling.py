"""torch.compile as longhaul uses it: every shape for itself, and never given up in silence.

Enters: a function of tensors. Leaves: the same, compiled. Never knows: what it computes.
"""

from collections.abc import Callable
from typing import Any

import torch


def compiled_by_shape(
    function: Callable[..., Any], kept_by_checkpointing: bool = False
) -> Callable[..., Any]:
    """`function` through torch.compile, anew for every shape and every number it is given.

    Left alone, torch would compile the second shape for all shapes to come: a resumed run that
    begins at that shape would have other bits than one that came to it. It would also give up
    after 8 forms, and go on uncompiled with no more than a warning: FlexAttention then writes all
    scores out.

    Args:
        function: a model, or a part of one.
        kept_by_checkpointing: let selective activation checkpointing see the generated code as one
            operation, whose results it may keep (`parallel/recompute.py`). Torch before 2.13
            confuses the results of several; there they are computed again.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = limits.accumulated_recompile_limit
    limits.fail_on_recompile_limit_hit = True
    options: dict[str, Any] = {}
    if kept_by_checkpointing and hasattr(torch.utils.checkpoint, "_sac_storage_key"):
        options["wrap_inductor_compiled_regions"] = True
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False, options=options or None)
    return compiled
