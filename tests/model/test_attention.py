import math

import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.model.attention import Attention
from longhaul.model.positions import RotaryPositions, rotate


def make(qk_norm: bool, positions: str, heads: int = 3, width: int = 24, length: int = 70):
    settings = ModelSection.model_validate(
        {
            "layers": 1,
            "heads": heads,
            "width": width,
            "context": length,
            "qk_norm": qk_norm,
            "positions": positions,
            "bias": True,
        }
    )
    attention = Attention(settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    rotation = None
    if positions == "rotary":
        rotary = RotaryPositions(settings)
        rotary.fill()
        rotation = rotary(length)
    return attention, rotation


def reference(attention: Attention, x, rotation, qk_norm: bool):
    """Equation 1 of "Attention is all you need", a head and a position at a time, float64."""
    batch, length, width = x.shape
    heads, head_width = attention.heads, width // attention.heads
    mixed = x @ attention.qkv.weight.double().T + attention.qkv.bias.double()
    gathered = torch.zeros(batch, length, width, dtype=torch.float64)
    for row in range(batch):
        for head in range(heads):
            part = slice(head * head_width, (head + 1) * head_width)
            query, key, value = (mixed[row, :, i * width :][:, part] for i in range(3))
            if qk_norm:
                query, key = (
                    y / torch.sqrt(y.square().mean(-1, keepdim=True) + 1e-6) for y in (query, key)
                )
            if rotation is not None:
                exact = tuple(angles.double() for angles in rotation)
                query, key = (_turn(y, exact) for y in (query, key))
            for now in range(length):
                scores = key[: now + 1] @ query[now] / math.sqrt(head_width)
                weights = torch.exp(scores - scores.max())
                gathered[row, now, part] = (weights / weights.sum()) @ value[: now + 1]
    return gathered @ attention.out.weight.double().T + attention.out.bias.double()


def _turn(y, rotation):
    cos, signed_sin = rotation
    return y * cos + y.roll(y.shape[-1] // 2, dims=-1) * signed_sin


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("length", [1, 9, 70])
def test_attention_equals_a_plain_float64_reference(qk_norm, positions, length):
    attention, rotation = make(qk_norm, positions, length=length)
    x = torch.randn(2, length, 24, generator=torch.Generator().manual_seed(1))
    expected = reference(attention, x.double(), rotation, qk_norm)
    torch.testing.assert_close(attention(x, rotation).double(), expected, atol=1e-5, rtol=1e-4)


def test_gradients_equal_those_of_the_float64_reference():
    attention, rotation = make(qk_norm=True, positions="rotary", length=9)
    weights = (attention.qkv.weight, attention.out.weight)
    x = torch.randn(2, 9, 24, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad(attention(x, rotation).square().sum(), weights)
    exact = reference(attention, x.double(), rotation, True)
    theirs = torch.autograd.grad(exact.square().sum(), weights)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_qk_norm_makes_scores_independent_of_the_size_of_queries_and_keys():
    attention, rotation = make(qk_norm=True, positions="rotary")
    x = torch.randn(1, 70, 24, generator=torch.Generator().manual_seed(1))
    before = attention(x, rotation)
    with torch.no_grad():
        attention.qkv.weight[:48] *= 7
        attention.qkv.bias[:48] *= 7
    torch.testing.assert_close(attention(x, rotation), before, atol=1e-4, rtol=1e-4)


def test_rotation_leaves_the_length_of_a_vector_as_it_was():
    _, rotation = make(qk_norm=False, positions="rotary")
    x = torch.randn(1, 70, 2, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(rotate(x, rotation).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize(("length", "in_float32"), [(64, True), (256, True), (257, False)])
def test_only_short_sequences_attend_in_float32_under_autocast_on_a_cpu(
    monkeypatch, length, in_float32
):
    attention, _ = make(qk_norm=False, positions="learned", length=300)
    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, value, **options):
        gathered = attend(query, key, value, **options)
        seen.append((query.dtype, gathered.dtype))
        return gathered

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    x = torch.randn(1, length, 24)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(x, None)
    wanted = torch.float32 if in_float32 else torch.bfloat16
    assert seen == [(wanted, wanted)]
    assert out.dtype == torch.bfloat16


def test_bf16_autocast_stays_near_float32():
    attention, _ = make(qk_norm=False, positions="learned")
    x = torch.randn(2, 70, 24, generator=torch.Generator().manual_seed(1))
    exact = attention(x, None)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = attention(x, None)
    assert torch.linalg.vector_norm(rounded - exact) < 0.02 * torch.linalg.vector_norm(exact)
