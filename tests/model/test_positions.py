import math

import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.model.embedding import LearnedPositions, RotaryPositions, fill_sinusoidal, rotate


def rotary(
    context: int = 300, head_width: int = 8, base: float = 10_000.0, **changes: object
) -> RotaryPositions:
    shape = {"layers": 1, "heads": 1, "width": head_width, "context": context}
    settings = ModelSection.model_validate(shape | {"rotary_base": base} | changes)
    positions = RotaryPositions(settings)
    positions.fill()
    return positions


def reference(x: list[float], position: int, base: float) -> list[float]:
    """RoFormer's equation 34 on plain floats, pairs (i, i + K/2)."""
    half = len(x) // 2
    out = [0.0] * len(x)
    for i in range(half):
        angle = position * base ** (-2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def test_rotation_equals_a_float64_reference():
    positions = rotary(base=500.0)
    x_BTHK = torch.randn(1, 300, 2, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate(x_BTHK, positions(300))
    for head in range(2):
        for position in (0, 1, 17, 299):
            expected = reference(x_BTHK[0, position, head].tolist(), position, 500.0)
            torch.testing.assert_close(
                turned[0, position, head].double(),
                torch.tensor(expected, dtype=torch.float64),
                atol=1e-5,
                rtol=0,
            )


def test_scores_depend_only_on_the_distance_between_positions():
    positions = rotary()
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    queries = rotate(query.expand(1, 300, 1, 8), positions(300))[0, :, 0]
    keys = rotate(key.expand(1, 300, 1, 8), positions(300))[0, :, 0]
    scores = queries @ keys.T
    for distance in (0, 3, 120):
        along = scores.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-4, rtol=1e-4)


def test_angles_stay_float32_when_the_model_is_bfloat16():
    positions = rotary(context=4096)
    x = torch.ones(1, 4096, 1, 8, dtype=torch.bfloat16)
    turned = rotate(x, positions(4096))
    assert turned.dtype == torch.bfloat16
    exact = rotate(x.float(), positions(4096))
    assert (turned.float() - exact).abs().max() < 0.01


@pytest.mark.parametrize("past", [0, 1, 250])
def test_positions_after_a_past_are_those_of_the_whole(past):
    positions = rotary()
    for part, whole in zip(positions(50, past), positions(300), strict=True):
        assert torch.equal(part, whole[past : past + 50])
    learned = LearnedPositions(ModelSection(layers=1, heads=1, width=8, context=300))
    with torch.no_grad():
        learned.weight.normal_(generator=torch.Generator().manual_seed(0))
    added = learned(torch.zeros(2, 50, 8), past)
    assert torch.equal(added, learned.weight[past : past + 50].expand(2, -1, -1))


@pytest.mark.parametrize(
    ("scaling", "base", "factor", "original", "head_width", "own"),
    [
        ("linear", 10_000.0, 4.0, 64, 64, {}),
        ("llama3", 500_000.0, 8.0, 8192, 128, {}),  # Llama 3.1's own
        ("llama3", 500_000.0, 32.0, 8192, 64, {}),  # Llama 3.2 1B's
        ("llama3", 10_000.0, 8.0, 64, 64, {}),
        ("llama3", 10_000.0, 8.0, 256, 64, {"slow": 0.5, "fast": 20.0}),
        ("llama3", 10_000.0, 1.0, 64, 64, {}),
        ("yarn", 1_000_000.0, 4.0, 32_768, 128, {}),  # Qwen 2.5's and Qwen 3's
        ("yarn", 10_000.0, 16.0, 256, 64, {"slow": 0.5, "fast": 20.0, "truncate": False}),
        ("yarn", 10_000.0, 16.0, 256, 64, {"attention_factor": 0.7}),
        ("yarn", 150_000.0, 32.0, 4096, 64, {"truncate": False}),  # gpt-oss's
        ("yarn", 10_000.0, 2.0, 4, 64, {}),  # every pair turns less than once
        ("yarn", 10_000.0, 1.0, 100_000_000, 8, {}),
    ],
)
def test_stretched_angles_equal_those_of_transformers(
    scaling, base, factor, original, head_width, own
):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    context = 2048
    config = transformers.LlamaConfig(
        hidden_size=head_width,
        num_attention_heads=1,
        max_position_embeddings=context,
        rope_parameters={
            "rope_type": scaling,
            "beta_slow": own.get("slow", 1.0),
            "beta_fast": own.get("fast", 32.0),
            "truncate": own.get("truncate", True),
            "attention_factor": own.get("attention_factor"),
            "rope_theta": base,
            "factor": factor,
            "low_freq_factor": own.get("slow", 1.0),
            "high_freq_factor": own.get("fast", 4.0),
            "original_max_position_embeddings": original,
        },
    )
    theirs = LlamaRotaryEmbedding(config)
    cos, sin = theirs(torch.zeros(1), torch.arange(context)[None])
    names = {"slow": "rotary_slow_turns", "fast": "rotary_fast_turns"}
    ours = rotary(
        context, head_width, base,
        rotary_scaling=scaling, rotary_factor=factor, rotary_original_context=original,
        **{names.get(kind, f"rotary_{kind}"): value for kind, value in own.items()},
    )  # fmt: skip
    cos_TK, sin_TK = ours(context)
    # Theirs are multiplied in float32: an angle of 2,000 is off by 1e-4.
    torch.testing.assert_close(cos_TK, cos[0], atol=3e-4, rtol=0)
    torch.testing.assert_close(sin_TK[:, head_width // 2 :], sin[0, :, :head_width // 2],
                               atol=3e-4, rtol=0)  # fmt: skip


def test_llama3_leaves_fast_pairs_alone_and_stretches_slow_ones_in_full():
    plain, stretched = rotary(head_width=64), rotary(
        head_width=64, rotary_scaling="llama3", rotary_factor=8.0, rotary_original_context=256
    )  # fmt: skip
    angle = [torch.atan2(p.sin_TK[1, 32:], p.cos_TK[1, :32]) for p in (plain, stretched)]
    turns = 256 * angle[0] / (2 * math.pi)
    ratio = angle[0] / angle[1]
    torch.testing.assert_close(ratio[turns > 4], torch.ones_like(ratio[turns > 4]))
    torch.testing.assert_close(ratio[turns < 1], torch.full_like(ratio[turns < 1], 8.0))
    assert (ratio.diff() > -1e-4).all()


def test_only_the_first_share_of_a_head_is_rotated_as_if_it_were_a_head():
    x_BTHK = torch.randn(1, 300, 2, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate(x_BTHK, rotary(rotary_share=0.5)(300))
    assert torch.equal(turned[..., 4:], x_BTHK[..., 4:])
    assert torch.equal(turned[..., :4], rotate(x_BTHK[..., :4], rotary(head_width=4)(300)))


@pytest.mark.parametrize("width", [8, 7])
def test_sinusoidal_positions_are_those_of_the_paper_at_the_size_asked_for(width):
    settings = ModelSection(layers=1, heads=1, width=width, context=40, positions="learned")
    positions = LearnedPositions(settings)
    fill_sinusoidal(positions.weight, 0.02)
    for position in (0, 1, 39):
        for channel in range(width):
            angle = position / 10_000 ** (channel // 2 * 2 / width)
            wave = math.cos(angle) if channel % 2 else math.sin(angle)
            found = positions.weight[position, channel].item()
            assert found == pytest.approx(0.02 * math.sqrt(2) * wave, abs=1e-8)
    if width % 2 == 0:
        assert positions.weight.square().mean().sqrt().item() == pytest.approx(0.02, rel=1e-5)
    assert positions.weight.requires_grad
