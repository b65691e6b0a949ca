import math

import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build, initialise


def small(**changes: object) -> ModelSection:
    shape = {"layers": 8, "heads": 4, "width": 64, "context": 16, "bias": True}
    return ModelSection.model_validate(shape | changes)


def weights(model: GPT) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


def test_the_same_seed_gives_the_same_bits_whatever_the_global_generator_did():
    one = weights(build(small(), 65, seed=3))
    torch.manual_seed(99)
    torch.rand(7)
    before = torch.get_rng_state()
    other = weights(build(small(), 65, seed=3))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], other[name]) for name in one)
    third = weights(build(small(), 65, seed=4))
    assert not torch.equal(one["tokens.weight"], third["tokens.weight"])


def test_a_switch_that_adds_weights_leaves_the_start_of_the_others_alone():
    tied = weights(build(small(tied_head=True), 65, seed=3))
    untied = weights(build(small(tied_head=False), 65, seed=3))
    assert "head.weight" in untied.keys() - tied.keys()
    assert all(torch.equal(tied[name], untied[name]) for name in tied)


@pytest.mark.parametrize("std", [0.02, 0.006])
def test_spread_is_the_recipe_s_and_shrinks_with_depth_where_the_stream_is_written(std):
    model = build(small(init_std=std, positions="learned"), 650, seed=3)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif weight.ndim == 1:
            assert bool((weight == 1).all()), name
        else:
            writes = name.endswith(("attention.out.weight", "mlp.down.weight"))
            expected = std / math.sqrt(16) if writes else std
            assert weight.std().item() == pytest.approx(expected, rel=0.08), name
            assert abs(weight.mean().item()) < expected * 0.15, name


def test_switches_of_the_start_set_what_they_name_and_nothing_else():
    plain = weights(build(small(positions="learned"), 65, seed=3))
    zeroed = weights(
        build(small(positions="learned", zero_projections=True, zero_head=True), 65, seed=3)
    )
    at_zero = {"head.weight"}
    for layer in range(8):
        at_zero |= {f"blocks.{layer}.attention.out.weight", f"blocks.{layer}.mlp.down.weight"}
    for name, weight in zeroed.items():
        if name in at_zero:
            assert not weight.any(), name
        else:
            assert torch.equal(weight, plain[name]), name


def test_sinusoidal_positions_have_the_spread_of_the_recipe():
    table = weights(
        build(small(positions="learned", position_init="sinusoidal", init_std=0.006), 65, seed=3)
    )["positions.weight"]
    assert table.square().mean().sqrt().item() == pytest.approx(0.006, rel=1e-4)
    assert table[0, 0] == 0
    assert table[0, 1].item() == pytest.approx(0.006 * math.sqrt(2))


def test_shares_and_pairs_begin_as_their_source_has_them():
    found = weights(build(small(input_mix=True, unet_skips=True, bigram_rows=40), 65, seed=3))
    assert found["blocks.5.input_mix.weight"].tolist() == [1.0, 0.0]
    assert found["skips.weight"].tolist() == [1.0] * 4
    assert not found["bigrams.weight"].any()


def test_no_two_weights_are_alike():
    model = build(small(), 65, seed=3)
    assert not torch.equal(model.blocks[0].mlp.up.weight, model.blocks[1].mlp.up.weight)


def test_a_model_made_without_memory_can_be_filled_later():
    settings = small(vocab_multiple=16)
    with torch.device("meta"):
        empty = GPT(settings, 65)
    empty.to_empty(device="cpu")
    initialise(empty, settings, seed=3)
    tokens_BT = torch.arange(16)[None]
    assert torch.equal(empty(tokens_BT), build(settings, 65, seed=3)(tokens_BT))
