"""`longhaul` whose workers run out of memory: `python short_of_memory.py train RECIPE …`.

In the environment: SHORT_RANK, whose memory is short; SHORT_ABOVE, the most sequences that it
computes at once; SHORT_FROM, updates that are made before; SHORT_SAYS, the allocator's words;
SHORT_IN, `evaluation` if it is short there alone.
"""

import os
from typing import Any

import longhaul.cli.train
from longhaul.cli.main import main

really_work = longhaul.cli.train._work


def short() -> None:
    """Let this worker's allocator refuse what is too much."""
    import torch

    from longhaul.model.block import Block
    from longhaul.train.step import TrainingStep

    forward, above = Block.forward, int(os.environ["SHORT_ABOVE"])

    def computed(self: Any, x_BTD: Any, *given: Any, **named: Any) -> Any:
        if not self.training and len(x_BTD) > above:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, x_BTD, *given, **named)

    if os.environ.get("SHORT_IN") == "evaluation":
        Block.forward = computed  # type: ignore[method-assign]
        return
    call, loss, made = TrainingStep.__call__, TrainingStep._loss, [0]

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        figures = call(self, *given, **named)
        made[0] += 1
        return figures

    def refused(self: Any, tokens_BT: Any, *given: Any, **named: Any) -> Any:
        too_many = len(tokens_BT) > above
        if too_many and made[0] >= int(os.environ.get("SHORT_FROM", "0")):
            says = os.environ.get("SHORT_SAYS", "")
            raise RuntimeError(says) if says else torch.OutOfMemoryError("CUDA out of memory.")
        return loss(self, tokens_BT, *given, **named)

    TrainingStep.__call__ = counted  # type: ignore[method-assign]
    TrainingStep._loss = refused  # type: ignore[method-assign]


def work(folder: Any) -> None:
    if os.environ.get("RANK", "0") == os.environ["SHORT_RANK"]:
        short()
    really_work(folder)


if __name__ == "__main__":
    longhaul.cli.train._work = work
    main()
