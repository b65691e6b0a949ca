"""`longhaul` whose workers run out of memory: `python short_of_memory.py train RECIPE …`.

In the environment: SHORT_RANK, whose memory is short; SHORT_ABOVE, the most sequences that it
computes at once; SHORT_FROM, updates that are made before; SHORT_SAYS, the allocator's words;
SHORT_IN, `evaluation` if it is short there alone.
"""

import os
from typing import Any

from longhaul.cli.entry import main
from longhaul.core.faults import Point, register


def short(folder: Any) -> None:
    """Let this worker's allocator refuse what is too much."""
    if os.environ.get("RANK", "0") != os.environ["SHORT_RANK"]:
        return
    import torch

    from longhaul.model.block import Block

    forward, above = Block.forward, int(os.environ["SHORT_ABOVE"])

    def computed(self: Any, x_BTD: Any, *given: Any, **named: Any) -> Any:
        if not self.training and len(x_BTD) > above:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, x_BTD, *given, **named)

    if os.environ.get("SHORT_IN") == "evaluation":
        Block.forward = computed  # type: ignore[method-assign]
        return
    made = [0]

    def counted(step: Any) -> None:
        made[0] += 1

    def refused(loss: Any, step: Any, sequences: int) -> None:
        if sequences > above and made[0] >= int(os.environ.get("SHORT_FROM", "0")):
            says = os.environ.get("SHORT_SAYS", "")
            raise RuntimeError(says) if says else torch.OutOfMemoryError("CUDA out of memory.")

    register(Point.UPDATED, counted)
    register(Point.LOSS, refused)


if __name__ == "__main__":
    register(Point.WORKER_START, short)
    main()
