"""The loss by chunks against whole logits, and what it takes."""

import pytest
import torch

from longhaul.config import model as config
from longhaul.config.model import ModelSection, rows_at_once
from longhaul.config.train import PrecisionSection
from longhaul.model.chunked_loss import Head, chunked_loss
from longhaul.model.gpt import GPT
from longhaul.model.head import IGNORED_TARGET, SummedLoss
from longhaul.model.initialise import build, to_number_format
from longhaul.model.layers import softcapped
from longhaul.model.tap import Tap
from longhaul.train.memory import peak_of

CPU = torch.device("cpu")
SHAPE = {"layers": 1, "heads": 2, "width": 16, "context": 24}
CAPPED = {"logit_softcap": 5.0, "z_loss": 1e-2, "vocab_multiple": 8}


def some_head(rows: int, width: int, vocabulary: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary - 3, (rows,), generator=generator)
    targets[2:4] = IGNORED_TARGET
    padding = torch.zeros(vocabulary, dtype=dtype)
    padding[-3:] = -torch.inf
    return x, weight, targets, padding


def whole(x, weight, targets, padding, softcap, z_loss):
    logits = x @ weight.t()
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits + padding
    losses = torch.nn.functional.cross_entropy(
        logits, targets, ignore_index=IGNORED_TARGET, reduction="sum"
    )
    counted = targets != IGNORED_TARGET
    return losses + z_loss * (logits.logsumexp(-1).square() * counted).sum()


@pytest.mark.parametrize("softcap", [0.0, 4.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.05])
@pytest.mark.parametrize("rows", [1, 4, 7, 100])
def test_in_float64_loss_and_gradients_are_those_of_whole_logits(softcap, z_loss, rows):
    given = some_head(11, 5, 13, torch.float64)
    x, weight, targets, padding = given
    head = Head(weight, padding, softcap, z_loss)
    loss, _ = chunked_loss(x, targets, head, rows)
    expected = whole(*given, softcap, z_loss)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    ours = torch.autograd.grad(3.0 * loss, (x, weight))
    for one, other in zip(ours, torch.autograd.grad(3.0 * expected, (x, weight)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("softcap", [0.0, 4.0])
def test_gradients_hold_against_small_differences(softcap):
    """By hand: `gradcheck` goes backward more than once, which is refused."""
    x, weight, targets, padding = some_head(5, 3, 7, torch.float64)

    def loss() -> torch.Tensor:
        return chunked_loss(x, targets, Head(weight, padding, softcap, 0.05), rows=2)[0]

    for given, gradient in zip((x, weight), torch.autograd.grad(loss(), (x, weight)), strict=True):
        values, slopes = given.detach().view(-1), []
        for number in range(len(values)):
            values[number] += 1e-6
            above = loss().item()
            values[number] -= 2e-6
            slopes.append((above - loss().item()) / 2e-6)
            values[number] += 1e-6
        torch.testing.assert_close(
            gradient.flatten(), torch.tensor(slopes, dtype=torch.float64), rtol=1e-6, atol=1e-7
        )


def results(monkeypatch, chunk: int, changes: dict[str, object], precision: str):
    """Loss, gauges, sequences' losses and gradients of a model with chunks of so many logits."""
    monkeypatch.setattr(config, "CHUNK_ON_CPU", chunk)
    monkeypatch.setattr(config, "_FEWEST_ROWS", 1)
    model = build(ModelSection.model_validate(SHAPE | changes), 45, seed=0)
    if precision == "weights":
        to_number_format(model, PrecisionSection(compute="bf16_weights"))
    generator = torch.Generator().manual_seed(1)
    tokens_BT, targets_BT = torch.randint(45, (2, 3, 24), generator=generator)
    targets_BT[1, 20:] = IGNORED_TARGET
    tap = Tap(model.gauges, layers=1)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        with tap.open_for_forward():
            tapped = model(tokens_BT, targets_BT, tap=tap)
        loss = model(tokens_BT, targets_BT)
    assert torch.equal(loss, tapped)  # reading changes nothing
    (loss / 7).backward()
    gradients = {name: p.grad.float() for name, p in model.named_parameters()}
    return loss.detach(), tap.drain(), gradients


@pytest.mark.parametrize("changes", [{}, CAPPED, {"tied_head": True, "vocab_multiple": 8}])
@pytest.mark.parametrize("precision", ["float32", "autocast", "weights"])
def test_a_model_has_the_same_loss_gauges_and_gradients(monkeypatch, changes, precision):
    plain = results(monkeypatch, 1 << 20, changes, precision)
    chunked = results(monkeypatch, 45 * 10, changes, precision)
    exact = precision == "float32"
    torch.testing.assert_close(chunked[0], plain[0], rtol=1e-6 if exact else 1e-4, atol=0)
    torch.testing.assert_close(chunked[1], plain[1], rtol=1e-5 if exact else 2e-3, atol=1e-5)
    for name, gradient in plain[2].items():
        apart = (chunked[2][name] - gradient).norm() / gradient.norm()
        assert apart < (1e-5 if exact else 2e-2), name


def test_the_weights_gradient_is_nearer_to_the_truth_than_that_of_one_product_in_bf16():
    """Chunks are added up in float32; a product of all rows would be rounded once, sums of rounded
    ones by as many roundings."""
    x, weight, targets, padding = some_head(512, 8, 16, torch.float32)
    exact = torch.autograd.grad(whole(x, weight, targets, padding, 0.0, 0.0), weight)[0]
    with torch.autocast("cpu", torch.bfloat16):
        chunked = chunked_loss(x, targets, Head(weight, padding, 0.0, 0.0), rows=16)[0]
        logits = torch.nn.functional.linear(x, weight, padding)
        plain = SummedLoss()(logits[None], targets[None])
    ours, theirs = (torch.autograd.grad(loss, weight)[0] for loss in (chunked, plain))
    assert (ours - exact).norm() < 1.1 * (theirs - exact).norm()


@pytest.mark.parametrize("softcap", [0.0, 4.0])
def test_a_step_takes_less_by_about_the_logits(softcap):
    x, weight, targets, padding = some_head(1024, 8, 512, torch.float32)

    def whole_logits() -> None:
        logits = torch.nn.functional.linear(x, weight, None if softcap else padding)
        if softcap:
            logits = softcapped(logits, softcap) + padding
        SummedLoss()(logits[None], targets[None]).backward()

    def by_chunks() -> None:
        chunked_loss(x, targets, Head(weight, padding, softcap, 0.0), rows=64)[0].backward()

    logits_bytes = 1024 * 512 * 4
    x.grad, weight.grad = torch.zeros_like(x), torch.zeros_like(weight)
    most, least = peak_of(whole_logits, CPU), peak_of(by_chunks, CPU)
    assert most > 3 * logits_bytes
    assert least < 0.3 * logits_bytes


def test_nan_reaches_loss_and_gradient():
    x, weight, targets, padding = some_head(6, 3, 7, torch.float32)
    with torch.no_grad():
        x[5, 0] = torch.nan
    loss, _ = chunked_loss(x, targets, Head(weight, padding, 0.0, 0.0), rows=2)
    assert loss.isnan()
    assert torch.autograd.grad(loss, weight)[0].isnan().any()


def test_gradients_that_were_used_are_not_used_again():
    x, weight, targets, padding = some_head(6, 3, 7, torch.float32)
    loss, _ = chunked_loss(x, targets, Head(weight, padding, 0.0, 0.0), rows=2)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_float16_weights_keep_whole_logits(monkeypatch):
    """Their gradients would overflow before the loss scale could make them small."""
    monkeypatch.setattr(config, "CHUNK_ON_CPU", 45)
    monkeypatch.setattr("longhaul.model.gpt.chunked_loss", None)
    model = build(ModelSection.model_validate(SHAPE), 45, seed=0)
    to_number_format(model, PrecisionSection(compute="fp16_weights", islands=False))
    assert model(torch.zeros(20, 24, dtype=torch.int64), torch.ones(20, 24).long()).isfinite()


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "rows"),
    [
        (4096, 4096, 256),  # quickstart
        (768, 65, 768),  # shakespeare-char: all at once
        (1024, 50_304, 128),
        (300, 4096, 150),  # even chunks
    ],
)
def test_rows_of_a_chunk(tokens, vocabulary, rows):
    assert rows_at_once(tokens, vocabulary, on_cpu=True) == rows


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, CAPPED | {"tied_head": True}])
def test_chunks_are_part_of_one_graph(monkeypatch, changes):
    """The code generator is left out; a graph break would fail."""
    monkeypatch.setattr(config, "CHUNK_ON_CPU", 45 * 20)
    monkeypatch.setattr(config, "_FEWEST_ROWS", 1)
    found = []
    tokens_BT = torch.arange(72).view(3, 24) % 45
    for compiled in (False, True):
        torch.compiler.reset()
        model: GPT = build(ModelSection.model_validate(SHAPE | changes), 45, seed=0)
        form = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        with torch.autocast("cpu", torch.bfloat16):
            (form(tokens_BT, tokens_BT) / 5).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for eager, captured in zip(*found, strict=True):
        torch.testing.assert_close(captured, eager, rtol=2e-2, atol=2e-3)
