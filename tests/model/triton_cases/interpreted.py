"""The loss's kernel, in Triton's interpreter, against float64 and against PyTorch's operations."""

import itertools
from dataclasses import replace

import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.model.chunked_loss import Head, chunked_loss
from longhaul.model.head import IGNORED_TARGET
from longhaul.model.initialise import build
from longhaul.model.loss_kernel import loss_in_place
from longhaul.model.tap import Tap

PADDED = 3
FORMATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def some(rows: int, columns: int, dtype: torch.dtype, scale: float = 4.0):
    generator = torch.Generator().manual_seed(rows * columns)
    logits = (scale * torch.randn(rows, columns, generator=generator)).to(dtype)
    targets = torch.randint(columns - PADDED, (2, rows), generator=generator)
    targets[:, 1::3] = IGNORED_TARGET
    padding = torch.zeros(columns, dtype=dtype)
    padding[-PADDED:] = -torch.inf
    return logits, targets[0], padding, [(0.25, targets[1])]


def in_float64(logits, targets, padding, softcap, z_loss, further):
    """Losses, log normalisers and largest logits of rows, and the gradient by autograd."""
    given = logits.double().requires_grad_()
    bent = softcap * torch.tanh(given / softcap) if softcap else given
    if padding is not None:
        bent = bent + padding.double()
    normalisers = bent.logsumexp(-1)
    total = z_loss * (normalisers.square() * (targets != IGNORED_TARGET)).sum()
    losses = []
    for weight, wanted in [(1.0, targets), *further]:
        losses.append(
            torch.nn.functional.cross_entropy(
                bent, wanted, ignore_index=IGNORED_TARGET, reduction="none"
            )
        )
        total = total + weight * losses[-1].sum()
    (gradient,) = torch.autograd.grad(total, given)
    return losses[0].detach(), normalisers.detach(), bent.detach().amax(1), gradient


def check(logits, targets, padding, softcap, z_loss, further) -> None:
    exact = in_float64(logits, targets, padding, softcap, z_loss, further)
    found = loss_in_place(logits, targets, padding, softcap, z_loss, further)
    for ours, theirs in zip(found, exact[:3], strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
    # The interpreter cuts what bfloat16 does not hold off, where a GPU rounds: one unit, not half.
    rtol, atol = (1e-5, 1e-6) if logits.dtype == torch.float32 else (2**-7, 2**-16)
    torch.testing.assert_close(logits.double(), exact[3], rtol=rtol, atol=atol)


@FORMATS
@pytest.mark.parametrize("softcap", [0.0, 15.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize(("rows", "columns"), [(1, 50), (7, 128), (3, 5003)])
def test_loss_and_gradient(dtype, softcap, z_loss, rows, columns) -> None:
    logits, targets, padding, further = some(rows, columns, dtype)
    for given_padding, given_further in itertools.product((None, padding), ((), further)):
        check(logits.clone(), targets, given_padding, softcap, z_loss, given_further)


@FORMATS
@pytest.mark.parametrize("softcap", [0.0, 15.0])
def test_extreme_logits(dtype, softcap) -> None:
    logits, targets, padding, further = some(6, 200, dtype, scale=1.0)
    logits[:3] = torch.where(logits[:3] > 0, 1e4, -1e4).to(dtype)
    logits[3] = -1e4
    check(logits, targets, padding, softcap, 0.01, further)


def test_a_block_of_nothing_but_padding() -> None:
    logits, targets, padding, further = some(2, 9000, torch.float32)
    padding[:4500] = -torch.inf
    check(logits, targets.clamp(min=4500), padding, 0.0, 0.01, further)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so(broken: float) -> None:
    logits, targets, padding, _ = some(3, 100, torch.float32)
    logits[2, 7] = broken
    found = loss_in_place(logits, targets, padding, 0.0, 0.0)
    assert [bool(of_rows[2].isnan()) for of_rows in found] == [True] * 3
    assert logits[2].isnan().any()
    assert all(bool(of_rows[:2].isfinite().all()) for of_rows in found)


@pytest.mark.parametrize("softcap", [0.0, 4.0])
@pytest.mark.parametrize("rows", [4, 100])
def test_chunks_are_those_of_pytorch(softcap: float, rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(11, 5, generator=generator).requires_grad_()
    weight = torch.randn(13, 5, generator=generator).requires_grad_()
    _, targets, padding, _ = some(11, 13, torch.float32)
    plain = Head(weight, padding, softcap, 0.05)
    results = []
    for head in (plain, replace(plain, kernel=loss_in_place)):
        loss, found = chunked_loss(x, targets, head, rows, reads_gauges=True)
        results.append([loss, *found, *torch.autograd.grad(loss, (x, weight))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_model_takes_it_even_where_one_chunk_is_enough(monkeypatch) -> None:
    settings = {
        "layers": 1, "heads": 2, "width": 16, "context": 24, "logit_softcap": 5.0, "z_loss": 1e-2,
        "vocab_multiple": 8, "ahead_stages": ({"from_step": 0, "weights": (0.5,)},),
    }  # fmt: skip
    tokens = torch.randint(45, (2, 24), generator=torch.Generator().manual_seed(0))
    calls, results = [], []

    def counted(*given):
        calls.append(given[0].shape)
        return loss_in_place(*given)

    for kernel in (None, counted):
        model = build(ModelSection.model_validate(settings), 45, seed=0)
        model.loss_kernel = kernel
        tap = Tap(model.gauges, layers=1)
        with tap.open_for_forward():
            loss = model(tokens, tokens, tap=tap)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        results.append([loss.detach(), tap.drain(), *gradients])
    assert calls == [(48, 48)]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
