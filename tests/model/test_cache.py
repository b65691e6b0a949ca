import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from longhaul.config.model import ModelSection
from longhaul.model.attention import Attention
from longhaul.model.carry import Carry, KeyValueCache
from longhaul.model.embedding import RotaryPositions
from longhaul.model.initialise import build
from longhaul.model.masks import make_sight

END = 0


def shape(**changes: object) -> ModelSection:
    small = {"layers": 4, "heads": 4, "width": 32, "context": 16}
    return ModelSection.model_validate(small | changes)


def random(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(1))


def some_tokens(vocab: int = 5, batch: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(2))


pieces = st.lists(st.integers(1, 7), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) <= 16)


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    pieces=pieces,
    window=st.sampled_from([None, 1, 4]),
    document_mask=st.booleans(),
    kv_heads=st.sampled_from([None, 2]),
    split_score_scale=st.booleans(),
)
def test_attention_fed_piece_by_piece_gives_what_it_gives_at_once(pieces, **switches):
    settings = shape(layers=1, **switches)
    attention, rotary = Attention(settings, 0), RotaryPositions(settings)
    rotary.fill()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(0))
    tokens, cache = some_tokens(length=sum(pieces)), KeyValueCache(settings, batch=2)
    x, parts = random(2, sum(pieces), 32), []
    sight = make_sight(settings, tokens, end_of_text=END)
    whole = attention(x, Carry(sight, rotary(sum(pieces))))
    with torch.no_grad():
        for size in pieces:
            past = cache.length
            seen = cache.see(tokens[:, past : past + size])
            sight = make_sight(settings, seen, past=past, end_of_text=END)
            carry = Carry(sight, rotary(size, past), cache=cache)
            parts.append(attention(x[:, past : past + size], carry))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-4)


@hypothesis_settings(max_examples=15, deadline=None)
@given(
    pieces=pieces,
    positions=st.sampled_from(["learned", "rotary", "none"]),
    window=st.sampled_from([None, 3]),
    document_mask=st.booleans(),
    value_residual=st.booleans(),
    value_embeddings=st.sampled_from([0, 1]),
    bigram_rows=st.sampled_from([0, 40]),
    kv_heads=st.sampled_from([None, 2]),
    input_mix=st.booleans(),
)
def test_the_whole_model_gives_the_same_logits_piece_by_piece(pieces, **switches):
    settings = shape(window_full_every=2, **switches)
    model = build(settings, 21, seed=0, end_of_text=END).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(0))
        tokens = some_tokens(vocab=21, length=sum(pieces))
        cache, parts = model.new_cache(batch=2), []
        for size in pieces:
            fresh = tokens[:, cache.length : cache.length + size]
            parts.append(model(fresh, cache=cache))
        torch.testing.assert_close(torch.cat(parts, 1), model(tokens), atol=1e-4, rtol=1e-4)


def test_it_returns_every_position_of_the_layer_asked_for():
    settings = shape(kv_heads=2, layers=2)
    cache = KeyValueCache(settings, batch=3)
    key, value = random(2, 3, 2, 5, 8)
    for layer in range(2):
        assert cache.length == 0
        cache.extend(layer, key[:, :, :4] + layer, value[:, :, :4] - layer)
    assert cache.length == 4
    for layer in range(2):
        keys, values = cache.extend(layer, key[:, :, 4:] + layer, value[:, :, 4:] - layer)
        assert torch.equal(keys, key + layer)
        assert torch.equal(values, value - layer)


def test_seeing_the_same_tokens_twice_in_a_pass_changes_nothing():
    cache, tokens = KeyValueCache(shape(layers=1), batch=2), some_tokens(length=6)
    assert torch.equal(cache.see(tokens[:, :4]), tokens[:, :4])
    assert torch.equal(cache.see(tokens[:, :4]), tokens[:, :4])
    cache.extend(0, random(2, 4, 4, 8), random(2, 4, 4, 8))
    assert torch.equal(cache.see(tokens[:, 4:]), tokens)


def test_keys_come_back_in_the_dtype_they_came_in():
    cache = KeyValueCache(shape(layers=1), batch=1)
    half = random(1, 4, 1, 8).bfloat16()
    keys, values = cache.extend(0, half, half)
    assert keys.dtype == values.dtype == torch.bfloat16
    assert torch.equal(keys, half)
