import torch

from longhaul.data.batches import IGNORED, real_tokens

TOKENS = torch.tensor([[1, 2], [3, 4], [0, 0]])


def test_a_real_sequence_stands_in_for_padding() -> None:
    targets = torch.tensor([[IGNORED, IGNORED], [4, 5], [IGNORED, IGNORED]])
    real = real_tokens(TOKENS, targets)
    assert real is not None
    assert real.tolist() == [[3, 4], [3, 4], [3, 4]]


def test_real_sequences_stay_the_very_tensor() -> None:
    assert real_tokens(TOKENS, torch.ones(3, 2)) is TOKENS


def test_padding_alone_has_nothing_to_read() -> None:
    assert real_tokens(TOKENS, torch.full((3, 2), IGNORED)) is None
