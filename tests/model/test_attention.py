import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from longhaul.config.model import ModelSection
from longhaul.model import attention as attention_module
from longhaul.model import masks
from longhaul.model.attention import SAMPLED_ROWS, Attention
from longhaul.model.carry import Carry
from longhaul.model.embedding import RotaryPositions, rotate
from longhaul.model.masks import make_sight
from longhaul.model.tap import Tap

END = 0
PLAIN = {"positions": "learned", "qk_norm": False}


def shape(**changes: object) -> ModelSection:
    small = {"layers": 3, "heads": 4, "width": 32, "context": 70, "bias": True}
    return ModelSection.model_validate(small | changes)


def make(settings: ModelSection, layer: int = 1) -> Attention:
    """Every weight random, so that no term hides behind a 0 or a 1."""
    attention = Attention(settings, layer)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return attention


def random(*size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def some_tokens(length: int, batch: int = 2) -> torch.Tensor:
    """A document ends every five tokens or so, elsewhere in each sequence."""
    return torch.randint(5, (batch, length), generator=torch.Generator().manual_seed(2))


def carry_of(settings: ModelSection, tokens: torch.Tensor, window: int | None = None) -> Carry:
    carry = Carry(make_sight(settings, tokens, window, end_of_text=END))
    if settings.positions == "rotary":
        rotary = RotaryPositions(settings)
        rotary.fill()
        carry.rotation = rotary(tokens.size(1))
    if settings.value_residual:
        carry.first_value_BTJK = random(
            *tokens.shape, settings.key_heads, settings.key_width, seed=3
        )
    return carry


def extra_of(settings: ModelSection, tokens: torch.Tensor) -> torch.Tensor | None:
    if not settings.value_embeddings:
        return None
    return random(*tokens.shape, settings.key_heads * settings.key_width, seed=4)


def reference(attention, settings, layer, x, tokens, carry, extra=None, window=None):
    """Equation 1 of "Attention is all you need" and the switches' own definitions: one sequence,
    one head and one position at a time, in float64."""
    heads, key_heads, per = settings.heads, settings.key_heads, settings.key_width
    mixed = x @ attention.qkv.weight.double().T
    if attention.qkv.bias is not None:
        mixed = mixed + attention.qkv.bias.double()
    window = None if settings.window_of(layer) is None else window or settings.window
    rows = []
    for row in range(x.shape[0]):
        outputs = []
        for head in range(heads):
            shared = head // (heads // key_heads)
            query = mixed[row, :, head * per :][:, :per]
            key = mixed[row, :, (heads + shared) * per :][:, :per]
            value = mixed[row, :, (heads + key_heads + shared) * per :][:, :per]
            if settings.value_residual and layer > 0:
                own, first = attention.value_mix.weight.double()
                value = own * value + first * carry.first_value_BTJK[row, :, shared].double()
            if extra is not None:
                own, share = attention.extra_value_mix.weight.double()
                value = own * value + share * extra[row, :, shared * per :][:, :per].double()
            if settings.qk_norm:
                query, key = (
                    y / torch.sqrt(y.square().mean(-1, keepdim=True) + 1e-6) for y in (query, key)
                )
            if settings.qk_norm_scale:
                query = query * attention.query_scale.weight.double()
                key = key * attention.key_scale.weight.double()
            if carry.rotation is not None:
                exact = tuple(angles.double() for angles in carry.rotation)
                query, key = (_turn(y, exact) for y in (query, key))
            gathered = []
            for now in range(x.shape[1]):
                seen = [
                    then
                    for then in range(now + 1)
                    if (window is None or now - then < window)
                    and not (settings.document_mask and END in tokens[row, then:now])
                ]
                scores = key[seen] @ query[now] * (settings.score_scale or 1 / math.sqrt(per))
                if cap := settings.score_softcap:
                    scores = cap * torch.tanh(scores / cap)
                weights = torch.exp(scores - scores.max())
                gathered.append((weights / weights.sum()) @ value[seen])
            out = torch.stack(gathered)
            if settings.attention_head_scale:
                out = out * attention.head_scale.weight[head].double()
            outputs.append(out)
        rows.append(torch.cat(outputs, dim=1))
    result = torch.stack(rows) @ attention.out.weight.double().T
    return result if attention.out.bias is None else result + attention.out.bias.double()


def _turn(y, rotation):
    cos, signed_sin = rotation
    return y * cos + y.roll(y.shape[-1] // 2, dims=-1) * signed_sin


def both(settings, length, layer=1, window=None, device="cpu"):
    """Output and weights of attention on `device`, and of the reference in float64."""
    attention, tokens = make(settings, layer), some_tokens(length)
    carry, extra = carry_of(settings, tokens, window), extra_of(settings, tokens)
    x = random(2, length, settings.width)
    exact = reference(attention, settings, layer, x.double(), tokens, carry, extra, window)
    there = copy.deepcopy(attention).to(device)
    carry.sight = make_sight(settings, tokens.to(device), window, end_of_text=END)
    if carry.rotation is not None:
        cos, sin = carry.rotation
        carry.rotation = cos.to(device), sin.to(device)
    if carry.first_value_BTJK is not None:
        carry.first_value_BTJK = carry.first_value_BTJK.to(device)
    out = there(x.to(device), carry, None if extra is None else extra.to(device))
    return (out, list(there.parameters())), (exact, list(attention.parameters()))


def assert_equal_to_reference(settings, length, layer=1, window=None, device="cpu"):
    """Output and gradients."""
    (out, weights), (exact, exact_weights) = both(settings, length, layer, window, device)
    torch.testing.assert_close(out.cpu().double(), exact, atol=2e-5, rtol=1e-4)
    ours = torch.autograd.grad(out.square().sum(), weights)
    theirs = torch.autograd.grad(exact.square().sum(), exact_weights)
    for one, other in zip(ours, theirs, strict=True):
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one.cpu() / scale, other / scale, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("length", [1, 9, 70])
def test_plain_attention_equals_a_float64_reference(qk_norm, positions, length):
    assert_equal_to_reference(shape(qk_norm=qk_norm, positions=positions), length)


SWITCHES = {
    "grouped": {"kv_heads": 2},
    "one key head": {"kv_heads": 1},
    "split scale": {"split_score_scale": True},
    "head scale": {"attention_head_scale": True},
    "own scale": {"score_scale": 0.7},
    "own scale, split": {"score_scale": 0.7, "split_score_scale": True},
    "capped": {"score_softcap": 1.5},
    "capped, grouped, windows": {"score_softcap": 1.5, "kv_heads": 2, "window": 4},
    "scales of queries and keys": {"qk_norm_scale": True, "kv_heads": 2},
    "wide heads": {"head_width": 12, "kv_heads": 2},
    "biases of queries, keys and values": {"bias": False, "qkv_bias": True},
    "window": {"window": 4},
    "window of one": {"window": 1},
    "window as long as the text": {"window": 17},
    "documents": {"document_mask": True},
    "documents in a window": {"document_mask": True, "window": 3},
    "value residual": {"value_residual": True},
    "value embeddings": {"value_embeddings": 2},
    "linear scaling": {"rotary_scaling": "linear", "rotary_factor": 4.0},
    "llama3 scaling": {"rotary_scaling": "llama3", "rotary_original_context": 32},
    "no biases": {"bias": False},
    "no positions": {"positions": "none"},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_each_switch_equals_the_reference(name):
    assert_equal_to_reference(shape(**SWITCHES[name]), 17)


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    kv_heads=st.sampled_from([None, 1, 2]),
    window=st.sampled_from([None, 1, 3, 11]),
    warm=st.sampled_from([None, 2, 5]),
    document_mask=st.booleans(),
    split_score_scale=st.booleans(),
    attention_head_scale=st.booleans(),
    value_residual=st.booleans(),
    value_embeddings=st.sampled_from([0, 1, 3]),
    rotary_scaling=st.sampled_from(["none", "linear", "llama3"]),
    positions=st.sampled_from(["rotary", "learned"]),
    qk_norm=st.booleans(),
    layer=st.sampled_from([0, 1, 2]),
    length=st.sampled_from([1, 2, 12]),
)
def test_any_combination_of_switches_equals_the_reference(layer, length, warm, **switches):
    settings = shape(rotary_original_context=16, window_full_every=3, **switches)
    has_extra = settings.value_embeddings == 3 or (settings.value_embeddings and layer != 1)
    if not has_extra:
        settings = settings.model_copy(update={"value_embeddings": 0})
    assert_equal_to_reference(settings, length, layer, warm)


FLEX_MASKS = [
    pytest.param({"window": 50}, marks=pytest.mark.slow),
    {"document_mask": True, "kv_heads": 1, "score_softcap": 1.5, "score_scale": 0.5},
    pytest.param(
        {"window": 50, "document_mask": True, "split_score_scale": True, "kv_heads": 2},
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("mask", FLEX_MASKS)
def test_flex_attention_is_asked_for_the_same_sums(monkeypatch, mask):
    """Its definition in plain torch operations, forward only: what a CPU can say of it."""
    settings = shape(context=140, **mask)
    monkeypatch.setattr(masks, "flex_attends", lambda *_: True)
    monkeypatch.setattr(attention_module, "_flex_attention", lambda: flex_attention)
    with torch.no_grad():
        (out, _), (exact, _) = both(settings, 140)
    torch.testing.assert_close(out.double(), exact, atol=2e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("length", [130, 300])
@pytest.mark.parametrize("mask", FLEX_MASKS)
def test_flex_attention_on_a_gpu_equals_the_reference(length, mask):
    settings = shape(heads=2, context=300, **mask)
    sight = make_sight(settings, some_tokens(length).cuda(), end_of_text=END)
    assert sight[1].blocks is not None
    assert_equal_to_reference(settings, length, device="cuda")


def test_off_switches_leave_no_weights():
    on = {
        "attention_head_scale": True, "value_residual": True, "value_embeddings": 3, "kv_heads": 2,
    }  # fmt: skip
    plain = {"qkv.weight", "qkv.bias", "out.weight", "out.bias"}
    names = {name for name, _ in make(shape()).named_parameters()}
    assert names == plain
    more = {name for name, _ in make(shape(**on)).named_parameters()}
    assert more - plain == {"head_scale.weight", "value_mix.weight", "extra_value_mix.weight"}
    assert make(shape(**on)).qkv.weight.shape == (32 + 2 * 16, 32)


def test_the_plain_pass_computes_nothing_for_a_switch():
    """Views aside: two products, their transposed weights, and attention itself."""

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            run.append(func._schema.name.removeprefix("aten::"))
            return func(*args, **(kwargs or {}))

    run = []
    attention, tokens = make(shape(**PLAIN)), some_tokens(9)
    carry, x = carry_of(shape(**PLAIN), tokens), random(2, 9, 32)
    with Recording():
        attention(x, carry)
    views = {"view", "_unsafe_view", "t", "transpose", "split", "split_with_sizes", "detach"}
    assert [op for op in run if op not in views] == [
        "addmm",
        "_scaled_dot_product_flash_attention_for_cpu",
        "addmm",
    ]


@pytest.mark.parametrize("tables", [0, 1, 2])
def test_values_from_tables_enter_the_first_and_the_last_layers(tables):
    settings = shape(layers=5, value_embeddings=tables)
    found = [Attention(settings, layer).extra_value_mix is not None for layer in range(5)]
    assert found == [layer < tables or layer >= 5 - tables for layer in range(5)]


def test_the_first_layer_leaves_its_values_for_the_others():
    settings = shape(value_residual=True)
    tokens = some_tokens(9)
    carry, attention, x = Carry(make_sight(settings, tokens)), make(settings, 0), random(2, 9, 32)
    attention(x, carry)
    values = attention.qkv(x)[..., 64:].view(2, 9, 4, 8)
    torch.testing.assert_close(carry.first_value_BTJK, values)
    assert attention.value_mix is None


def test_projections_that_start_at_zero_say_so():
    assert Attention(shape(zero_projections=True), 0).out.zero
    assert not Attention(shape(), 0).out.zero


@pytest.mark.parametrize(
    ("given", "in_force"),
    [({"dropout": 0.5}, 0.5), ({"dropout": 0.5, "attention_dropout": 0.0}, 0.0),
     ({"attention_dropout": 0.25}, 0.25)],
)  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_of_attention_weights_is_their_own_or_that_of_all(given, in_force, masked):
    settings = shape(**PLAIN, **given, **({"window": 3} if masked else {}))
    attention, tokens, x = make(settings), some_tokens(70), random(2, 70, 32)
    assert attention.dropout == in_force
    varies = not torch.equal(
        attention(x, carry_of(settings, tokens)), attention(x, carry_of(settings, tokens))
    )
    assert varies == (in_force > 0)
    attention.eval()
    exact = reference(attention, settings, 1, x.double(), tokens, carry_of(settings, tokens))
    out = attention(x, carry_of(settings, tokens)).double()
    torch.testing.assert_close(out, exact, atol=2e-5, rtol=1e-4)


def test_splitting_the_scale_keeps_scores_within_half_precision():
    """OPT's reason: Q·K before its scale can pass 65,504 where neither factor alone would."""
    settings = shape(**PLAIN, heads=1, width=64, bias=False)
    query = torch.full((1, 1, 2, 64), 60.0, dtype=torch.float16)
    assert (query @ query.mT).isinf().all()
    attention = Attention(settings.model_copy(update={"split_score_scale": True}), 0)
    scaled = query * attention.root_scale
    torch.testing.assert_close(
        (scaled @ scaled.mT).float(), torch.full((1, 1, 2, 2), 60.0**2 * 8), rtol=1e-3, atol=0
    )


def test_qk_norm_makes_scores_independent_of_the_size_of_queries_and_keys():
    settings, tokens = shape(qk_norm=True, kv_heads=2), some_tokens(70)
    attention, x = make(settings), random(2, 70, 32)
    before = attention(x, carry_of(settings, tokens))
    with torch.no_grad():
        attention.qkv.weight[:48] *= 7
        attention.qkv.bias[:48] *= 7
    after = attention(x, carry_of(settings, tokens))
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


def test_rotation_leaves_the_length_of_a_vector_as_it_was():
    rotation = carry_of(shape(), some_tokens(70)).rotation
    x = random(1, 70, 2, 8)
    torch.testing.assert_close(rotate(x, rotation).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize(("length", "short"), [(64, True), (256, True), (257, False)])
@pytest.mark.parametrize("masked", [False, True])
def test_short_sequences_attend_in_float32_under_autocast_on_a_cpu_or_written_out_where_unmasked(
    monkeypatch, length, short, masked
):
    settings = shape(**PLAIN, context=300, **({"window": 5} if masked else {}))
    attention, seen = make(settings), []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, value, **options):
        gathered = attend(query, key, value, **options)
        seen.append((query.dtype, gathered.dtype))
        return gathered

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(random(1, length, 32), carry_of(settings, some_tokens(length, batch=1)))
    wanted = torch.float32 if short else torch.bfloat16
    assert seen == ([] if short and not masked else [(wanted, wanted)])
    assert out.dtype == torch.bfloat16


SHORT = {
    "plain": PLAIN,
    "rotary with QK-norm": {},
    "its own scale, split": PLAIN | {"score_scale": 0.5, "split_score_scale": True},
    "values mixed, heads scaled": {"value_residual": True, "attention_head_scale": True},
    "a window as wide as the text": {"window": 70},
}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("length", [1, 2, 70])
def test_short_attention_written_out_in_bf16_has_the_sums_and_gradients_of_float32(
    monkeypatch, name, length
):
    settings, tokens = shape(**SHORT[name]), some_tokens(length)
    written_out, apply = [], attention_module._ShortAttention.apply
    monkeypatch.setattr(
        attention_module._ShortAttention, "apply", lambda *g: written_out.append(1) or apply(*g)
    )

    def passes() -> list[torch.Tensor]:
        attention, x = make(settings), random(2, length, 32).requires_grad_()
        out = attention(x, carry_of(settings, tokens)).float()
        out.backward(random(2, length, 32, seed=5))
        return [out.detach(), x.grad, attention.qkv.weight.grad, attention.out.weight.grad]

    exact = passes()
    assert not written_out
    with torch.autocast("cpu", torch.bfloat16):
        rounded = passes()
    assert written_out
    for near, wanted in zip(rounded, exact, strict=True):
        assert (near - wanted).norm() < 0.02 * wanted.norm()


def test_short_attention_written_out_keeps_the_digits_of_large_scores():
    """Rounded to bfloat16, scores near 50 would be off by up to 0.125 each, and shares by 13 %."""
    both = random(2, 70, 8, 8)
    both *= 10 / both.norm(dim=-1, keepdim=True)
    value = random(2, 70, 4, 8, seed=5).bfloat16()
    out = attention_module._ShortAttention.apply(both, value, 0.5)
    query, key = both.double().transpose(1, 2).split(4, dim=1)
    assert (query @ key.mT * 0.5).amax() > 40
    exact = torch.nn.functional.scaled_dot_product_attention(
        query, key, value.double().transpose(1, 2), is_causal=True, scale=0.5
    )
    assert (out.double() - exact).norm() < 4e-3 * exact.norm()


def test_short_attention_written_out_sees_nothing_that_comes_after():
    settings, tokens = shape(**PLAIN), some_tokens(70)
    attention, x = make(settings), random(2, 70, 32)
    changed = x.clone()
    changed[:, 40:] += 1.0
    with torch.autocast("cpu", torch.bfloat16):
        before, after = (attention(y, carry_of(settings, tokens)) for y in (x, changed))
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.equal(before[:, 40], after[:, 40])


def test_bf16_autocast_stays_near_float32_with_every_switch_on():
    switches = {"kv_heads": 2, "window": 9, "document_mask": True, "split_score_scale": True}
    values = {"attention_head_scale": True, "value_residual": True, "value_embeddings": 3}
    settings, tokens = shape(**switches, **values), some_tokens(70)
    attention, x, extra = make(settings), random(2, 70, 32), extra_of(settings, tokens)
    exact = attention(x, carry_of(settings, tokens), extra)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = attention(x, carry_of(settings, tokens), extra)
    assert rounded.dtype == torch.bfloat16
    assert torch.linalg.vector_norm(rounded - exact) < 0.02 * torch.linalg.vector_norm(exact)


@pytest.mark.slow
def test_masked_attention_is_captured_as_one_graph():
    settings = shape(kv_heads=2, window=9, document_mask=True, value_residual=True)
    attention, tokens, x = make(settings), some_tokens(70), random(2, 70, 32)
    carry = carry_of(settings, tokens)

    def attend(x, tokens):
        sight = make_sight(settings, tokens, end_of_text=END)
        fresh = Carry(sight, carry.rotation, first_value_BTJK=carry.first_value_BTJK)
        return attention(x, fresh)

    captured = torch.compile(attend, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(captured(x, tokens), attend(x, tokens))


@pytest.mark.parametrize("length", [1, 20, SAMPLED_ROWS, 70])
@pytest.mark.parametrize(
    "changes",
    [
        PLAIN,
        {},
        {"kv_heads": 2, "attention_head_scale": True},
        {"window": 4, "qk_norm": False},
        {"document_mask": True, "window": 9, "split_score_scale": True, **PLAIN},
    ],
    ids=str,
)
def test_the_largest_logit_is_that_of_what_the_kernel_is_told(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], length: int
) -> None:
    settings, told = shape(**changes), []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, value, **options):
        told.append((query.double(), key.double(), options))
        return kernel(query, key, value, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    tap = Tap([Attention.LOGIT_GAUGE], settings.layers)
    carry = carry_of(settings, some_tokens(length))
    carry.tap = tap
    attention = make(settings)
    with tap.open_for_forward():
        attention(random(2, length, 32), carry)
    (query, key, options), rows = told[0], torch.arange(length)
    if length > SAMPLED_ROWS:
        rows = (torch.linspace(0, length, SAMPLED_ROWS + 1)[1:] - 1).long()
        assert rows[-1] == length - 1
    repeated = key.repeat_interleave(settings.heads // settings.key_heads, dim=1)
    logits = query[:, :, rows] @ repeated.mT * (options["scale"] or settings.key_width**-0.5)
    if options["is_causal"]:
        seen = torch.ones(length, length, dtype=torch.bool).tril()[rows]
    else:
        seen = options["attn_mask"][..., rows, :]
    largest = logits.masked_fill(~seen, -math.inf).max().item()
    readings, _ = tap.by_name(tap.drain().tolist())
    assert readings["attention_logit_max"][1] == pytest.approx(largest, rel=1e-5)
