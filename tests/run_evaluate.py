"""What tests of evaluations share: the likelihood of one token, by itself."""

import torch

from longhaul.run.trained import Trained

CONTEXT = 8
"""Positions of the model in `tests/run/evaluate`."""


def nats_of(trained: Trained, tokens: list[int]) -> tuple[float, bool]:
    """Of the last token behind the others, by itself; and whether it is the likeliest."""
    with torch.inference_mode():
        logits_V = trained.model(torch.tensor([tokens[:-1]]))[0, -1].double()
    return float(-torch.log_softmax(logits_V, 0)[tokens[-1]]), int(logits_V.argmax()) == tokens[-1]
