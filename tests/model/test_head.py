import math

import pytest
import torch
from torch.nn import functional

from longhaul.model import head
from longhaul.model.head import IGNORED_TARGET, SummedLoss
from longhaul.model.layers import softcapped

summed_loss = SummedLoss()


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


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 3, 16, 1000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("autocast", [False, True])
def test_widening_half_logits_by_rows_changes_no_bit(monkeypatch, dtype, rows, z_loss, autocast):
    """A run that was begun before rows were widened by themselves goes on with the same bits."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(3, 17, 205, generator=generator) * 4).to(dtype)
    logits[..., 200:] = float("-inf")  # padding of the vocabulary
    targets = torch.randint(200, (3, 17), generator=generator)
    targets[0, 4:9] = IGNORED_TARGET
    ours, plain = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    monkeypatch.setattr(head, "_rows", lambda logits_NV: rows)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = summed_loss(ours, targets, z_loss)
        wide = plain.float().flatten(0, 1)
        expected = functional.cross_entropy(
            wide, targets.flatten(), ignore_index=IGNORED_TARGET, reduction="none"
        ).sum()
        if z_loss:
            counted = targets.flatten() != IGNORED_TARGET
            expected = expected + z_loss * (wide.logsumexp(-1).square() * counted).sum()
    (loss / 51).backward()
    (expected / 51).backward()
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert torch.equal(ours.grad, plain.grad)


def test_half_logits_are_not_widened_all_at_once(monkeypatch):
    """All at once they are several tensors of the logits' size, each fetched in every step."""
    logits = torch.randn(1, 64, 32).bfloat16().requires_grad_()
    monkeypatch.setattr(head, "_rows", lambda logits_NV: 8)
    sizes = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dtype == torch.float32:
                sizes.append(out.numel())
            return out

    with Watch():
        loss = summed_loss(logits, torch.arange(64).view(1, 64) % 32)
        loss.backward()
    assert 8 * 32 in sizes
    assert max(sizes) < logits.numel()
