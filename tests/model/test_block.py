import torch
from torch import Tensor

from longhaul.config.model import ModelSection
from longhaul.model.block import Block
from longhaul.model.carry import Carry
from longhaul.model.masks import make_sight

TOKENS_BT = torch.zeros(2, 8, dtype=torch.int64)


def made(**changes: object) -> tuple[Block, Carry, Tensor]:
    """A block with random weights, what a pass carries, and a stream."""
    shape = {"layers": 2, "heads": 2, "width": 16, "context": 8, "positions": "none"}
    settings = ModelSection.model_validate(shape | changes)
    block, generator = Block(settings, layer=0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    stream, given = torch.randn(2, 2, 8, 16, generator=generator)
    return block, Carry(make_sight(settings, TOKENS_BT), input_BTD=given), stream


def test_pre_norm_normalises_what_a_sub_layer_reads():
    block, carry, x = made()
    x1 = x + block.attention(block.attention_norm(x), carry)
    torch.testing.assert_close(block(x, carry), x1 + block.mlp(block.mlp_norm(x1)))


def test_post_norm_normalises_each_sum():
    block, carry, x = made(norm_placement="post")
    x1 = block.attention_norm(x + block.attention(x, carry))
    torch.testing.assert_close(block(x, carry), block.mlp_norm(x1 + block.mlp(x1)))


def test_parallel_sub_layers_read_the_same_stream_each_through_its_norm():
    block, carry, x = made(parallel_residual=True)
    attended, transformed = (
        block.attention(block.attention_norm(x), carry),
        block.mlp(block.mlp_norm(x)),
    )
    torch.testing.assert_close(block(x, carry), x + attended + transformed)


def test_normformer_normalises_what_attention_adds():
    block, carry, x = made(attention_out_norm=True)
    x1 = x + block.attention_out_norm(block.attention(block.attention_norm(x), carry))
    torch.testing.assert_close(block(x, carry), x1 + block.mlp(block.mlp_norm(x1)))


def test_input_mix_is_read_by_the_block_and_carried_on_in_the_stream():
    block, carry, x = made(input_mix=True)
    mixed = block.input_mix.weight[0] * x + block.input_mix.weight[1] * carry.input_BTD
    x1 = mixed + block.attention(block.attention_norm(mixed), carry)
    torch.testing.assert_close(block(x, carry), x1 + block.mlp(block.mlp_norm(x1)))


def test_dropout_scales_what_is_left_of_each_contribution():
    block, carry, x = made(dropout=0.5, attention_dropout=0.0)
    with torch.no_grad():
        block.mlp.down.weight.zero_()
        added = block.attention(block.attention_norm(x), carry)
        got = block(x, carry) - x
    kept = got != 0
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(got[kept], 2 * added[kept], rtol=1e-4, atol=1e-5)
