"""Rows that only keep ranks in step: how they are kept out of what gauges read.

Enters: a micro-batch on the host. Leaves: the tokens to compute with. Never knows: the model.

Shape suffixes: B sequences, T tokens of a sequence.
"""

import torch
from torch import Tensor

from longhaul.data.batches import IGNORED


def real_tokens(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor | None:
    """The tokens with a real sequence in the place of each that is only padding.

    Padding is computed, and adds nothing to the loss whatever its tokens are; but the same token
    over and over is no text, and would show in the activations. A gauge that is a mean so counts
    one sequence more than once.

    Returns:
        None if all sequences are padding.
    """
    real_B = (targets_BT != IGNORED).any(dim=1)
    numbers = real_B.nonzero()[:1]
    if not len(numbers):
        return None
    row_B = torch.where(real_B, torch.arange(len(real_B)), numbers[0])
    return tokens_BT if bool(real_B.all()) else tokens_BT[row_B]
