import math

import pytest
import torch

from longhaul.model.head import IGNORED_TARGET, softcapped, summed_loss


def some_logits() -> torch.Tensor:
    return torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)) * 3


def test_capped_logits_keep_their_order_and_never_pass_the_cap():
    logits = some_logits()
    capped = softcapped(logits, 2.0)
    assert float(capped.abs().max()) < 2.0
    assert torch.equal(capped.argsort(-1), logits.argsort(-1))
    assert capped[0, 0, 0].item() == pytest.approx(2 * math.tanh(logits[0, 0, 0].item() / 2))


def test_z_loss_is_the_weighted_square_of_the_log_normaliser_of_counted_targets():
    logits, targets = some_logits(), torch.arange(10).view(2, 5) % 7
    targets[1, 2:] = IGNORED_TARGET
    plain, with_z = summed_loss(logits, targets), summed_loss(logits, targets, z_loss=0.1)
    expected = 0.0
    for row, target in zip(logits.flatten(0, 1).tolist(), targets.flatten().tolist(), strict=True):
        if target != IGNORED_TARGET:
            expected += math.log(sum(math.exp(logit) for logit in row)) ** 2
    assert (with_z - plain).item() == pytest.approx(0.1 * expected, rel=1e-5)


def test_z_loss_survives_a_padded_vocabulary():
    logits, targets = some_logits(), torch.arange(10).view(2, 5) % 5
    padded = logits.clone()
    padded[..., 5:] = float("-inf")
    padded.requires_grad_()
    loss = summed_loss(padded, targets, z_loss=0.1)
    torch.testing.assert_close(loss, summed_loss(logits[..., :5], targets, z_loss=0.1))
    loss.backward()
    assert bool(padded.grad.isfinite().all())
