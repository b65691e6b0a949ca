from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longhaul.config.model import ModelSection
from longhaul.core.errors import UsageError
from longhaul.model.block import Block
from longhaul.model.gpt import GPT
from longhaul.model.head import IGNORED_TARGET
from longhaul.model.initialise import build
from longhaul.model.tap import Tap

GPT2 = {
    "positions": "learned",
    "norm": "layernorm",
    "activation": "gelu_tanh",
    "bias": True,
    "qk_norm": False,
    "tied_head": True,
}


def small(**changes: object) -> ModelSection:
    shape = {"layers": 2, "heads": 4, "width": 32, "context": 16}
    return ModelSection.model_validate(shape | changes)


def randomised(model: GPT, seed: int = 0) -> GPT:
    """Every weight random, biases and scales too, so that no term hides behind a 0 or a 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
    return model


def some_tokens(vocab: int, batch: int = 3, length: int = 16, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (batch, length), generator=generator)


def copy_into_transformers(model: GPT, theirs: torch.nn.Module) -> None:
    """The whole map from our names to GPT-2's; its Conv1D keeps matrices transposed."""
    state = {"transformer.wte.weight": model.tokens.weight, "lm_head.weight": model.tokens.weight}
    state["transformer.wpe.weight"] = model.positions.weight
    for ours, gpt2 in (
        ("attention_norm", "ln_1"),
        ("attention.qkv", "attn.c_attn"),
        ("attention.out", "attn.c_proj"),
        ("mlp_norm", "ln_2"),
        ("mlp.up", "mlp.c_fc"),
        ("mlp.down", "mlp.c_proj"),
    ):
        for layer, block in enumerate(model.blocks):
            module = block.get_submodule(ours)
            weight = module.weight.T if module.weight.ndim == 2 else module.weight
            state[f"transformer.h.{layer}.{gpt2}.weight"] = weight
            state[f"transformer.h.{layer}.{gpt2}.bias"] = module.bias
    state["transformer.ln_f.weight"] = model.final_norm.weight
    state["transformer.ln_f.bias"] = model.final_norm.bias
    theirs.load_state_dict(state)


@pytest.mark.parametrize(
    ("layers", "heads", "width", "context", "vocab"),
    [(1, 1, 8, 4, 11), (2, 4, 32, 16, 257), (3, 3, 48, 20, 65)],
)
def test_logits_equal_those_of_transformers_gpt2(layers, heads, width, context, vocab):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    settings = small(layers=layers, heads=heads, width=width, context=context, **GPT2)
    model = randomised(build(settings, vocab, seed=0)).eval()
    config = transformers.GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        n_positions=context,
        vocab_size=vocab,
        bos_token_id=0,
        eos_token_id=0,
        activation_function="gelu_new",
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    copy_into_transformers(model, theirs)
    tokens_BT = some_tokens(vocab, length=context)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens_BT), theirs(tokens_BT).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("modern", [False, True])
def test_the_loss_is_the_sum_over_targets_and_skips_padding(modern):
    settings = small() if modern else small(**GPT2)
    model = randomised(build(settings, 21, seed=0))
    tokens_BT, targets_BT = some_tokens(21), some_tokens(21, seed=2)
    targets_BT[0, 3:7] = IGNORED_TARGET
    logits_BTV = model(tokens_BT).detach().double()
    expected = 0.0
    for logits_V, target in zip(logits_BTV.flatten(0, 1), targets_BT.flatten(), strict=True):
        if target != IGNORED_TARGET:
            expected += torch.logsumexp(logits_V, 0) - logits_V[target]
    loss = model(tokens_BT, targets_BT)
    assert loss.dtype == torch.float32
    assert loss.shape == ()
    assert loss.item() == pytest.approx(float(expected), rel=1e-5)


def test_padding_the_vocabulary_changes_nothing_but_the_table():
    plain, padded = small(tied_head=True), small(tied_head=True, vocab_multiple=16)
    one, other = build(plain, 21, seed=0), build(padded, 21, seed=0)
    assert other.tokens.weight.shape[0] == 32
    with torch.no_grad():
        state = one.state_dict()
        other.tokens.weight[:21].copy_(state.pop("tokens.weight"))
        other.load_state_dict(state, strict=False)
    tokens_BT, targets_BT = some_tokens(21), some_tokens(21, seed=2)
    torch.testing.assert_close(other(tokens_BT), one(tokens_BT))
    loss = other(tokens_BT, targets_BT)
    torch.testing.assert_close(loss, one(tokens_BT, targets_BT))
    loss.backward()
    assert not other.tokens.weight.grad[21:].any()


@hypothesis_settings(max_examples=15, deadline=None)
@given(
    positions=st.sampled_from(["learned", "rotary"]),
    norm=st.sampled_from(["layernorm", "rmsnorm"]),
    qk_norm=st.booleans(),
    tied_head=st.booleans(),
    bias=st.booleans(),
    changed=st.integers(0, 15),
)
def test_no_position_sees_the_tokens_after_it(positions, norm, qk_norm, tied_head, bias, changed):
    settings = small(
        positions=positions, norm=norm, qk_norm=qk_norm, tied_head=tied_head, bias=bias
    )
    model = randomised(build(settings, 21, seed=0))
    tokens_BT = some_tokens(21)
    other_BT = tokens_BT.clone()
    other_BT[:, changed] = (other_BT[:, changed] + 1) % 21
    with torch.no_grad():
        before, after = model(tokens_BT), model(other_BT)
    torch.testing.assert_close(before[:, :changed], after[:, :changed], rtol=1e-6, atol=1e-6)
    assert (before[:, changed:] - after[:, changed:]).abs().max() > 1e-3


def test_every_weight_gets_a_gradient_in_either_form():
    for form in (small(), small(**GPT2)):
        model = build(form, 21, seed=0)
        model(some_tokens(21), some_tokens(21, seed=2)).backward()
        silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert silent == []


def test_dropout_acts_in_training_only():
    model = build(small(dropout=0.5), 21, seed=0)
    tokens_BT = some_tokens(21)
    assert not torch.equal(model(tokens_BT), model(tokens_BT))
    model.eval()
    assert torch.equal(model(tokens_BT), model(tokens_BT))


def test_the_loss_stays_float32_under_bf16_autocast():
    model = build(small(), 21, seed=0)
    tokens_BT, targets_BT = some_tokens(21), some_tokens(21, seed=2)
    exact = model(tokens_BT, targets_BT)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(tokens_BT).dtype == torch.bfloat16
        loss = model(tokens_BT, targets_BT)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.01)


def test_the_loss_is_summed_in_float32_even_if_the_weights_are_bfloat16():
    model = build(small(**GPT2), 21, seed=0).bfloat16()
    assert model(some_tokens(21), some_tokens(21, seed=2)).dtype == torch.float32


def test_a_sequence_beyond_the_context_is_refused_with_both_lengths():
    model = build(small(), 21, seed=0)
    with pytest.raises(UsageError, match=r"17 tokens .* context 16"):
        model(some_tokens(21, length=17))


def test_shorter_sequences_give_the_same_logits_as_the_beginning_of_longer_ones():
    for form in (small(), small(**GPT2)):
        model = randomised(build(form, 21, seed=0))
        tokens_BT = some_tokens(21)
        with torch.no_grad():
            whole, part = model(tokens_BT), model(tokens_BT[:, :5])
        torch.testing.assert_close(whole[:, :5], part, rtol=1e-5, atol=1e-5)


def test_padding_takes_no_probability_under_a_cap_either():
    plain, padded = small(logit_softcap=3.0), small(logit_softcap=3.0, vocab_multiple=16)
    one, other = build(plain, 21, seed=0), randomised(build(padded, 21, seed=0))
    with torch.no_grad():
        state = other.state_dict()
        one.load_state_dict(
            state | {name: state[name][:21] for name in ("tokens.weight", "head.weight")}
        )
    tokens_BT, targets_BT = some_tokens(21), some_tokens(21, seed=2)
    torch.testing.assert_close(other(tokens_BT), one(tokens_BT))
    assert other(tokens_BT).abs().max() < 3.0
    torch.testing.assert_close(other(tokens_BT, targets_BT), one(tokens_BT, targets_BT))


def test_evaluation_reports_the_plain_loss_and_training_the_one_with_z_loss():
    model, plain = build(small(z_loss=0.5), 21, seed=0), build(small(), 21, seed=0)
    tokens_BT, targets_BT = some_tokens(21), some_tokens(21, seed=2)
    log_normaliser = plain(tokens_BT).logsumexp(-1)
    expected = plain(tokens_BT, targets_BT) + 0.5 * log_normaliser.square().sum()
    torch.testing.assert_close(model(tokens_BT, targets_BT), expected)
    model.eval()
    assert torch.equal(model(tokens_BT, targets_BT), plain(tokens_BT, targets_BT))


def test_scaling_the_embedding_is_scaling_the_token_table():
    model, scaled = (
        build(small(**GPT2), 21, seed=0),
        build(small(**GPT2 | {"embedding_scale": 4.0, "tied_head": False}), 21, seed=0),
    )
    with torch.no_grad():
        scaled.load_state_dict(model.state_dict() | {"head.weight": model.tokens.weight})
        scaled.tokens.weight /= 4.0
    torch.testing.assert_close(scaled(some_tokens(21)), model(some_tokens(21)))


def test_the_embedding_is_normalised_before_the_first_block():
    model = randomised(build(small(embedding_norm=True, norm_scale=False), 21, seed=0))
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    model(some_tokens(21))
    torch.testing.assert_close(seen[0].square().mean(-1), torch.ones(3, 16), atol=1e-3, rtol=0)


def test_only_the_outer_layers_get_values_from_tables():
    model = build(small(layers=5, value_embeddings=2), 21, seed=0)
    given = {}
    for layer, block in enumerate(model.blocks):
        block.register_forward_pre_hook(
            lambda _module, inputs, layer=layer: given.update({layer: inputs[2]})
        )
    tokens_BT = some_tokens(21)
    model(tokens_BT)
    served = {layer: rows for layer, rows in given.items() if rows is not None}
    assert served.keys() == {0, 1, 3, 4}
    for layer, rows_BTD in served.items():
        table = model.value_tables[0 if layer in (0, 3) else 1]
        assert torch.equal(rows_BTD, table(tokens_BT))


def test_a_window_given_to_one_pass_takes_the_place_of_the_recipe_s():
    model = randomised(build(small(window=4), 21, seed=0)).eval()
    narrow = randomised(build(small(window=2), 21, seed=0)).eval()
    with torch.no_grad():
        tokens_BT = some_tokens(21)
        assert torch.equal(model(tokens_BT, window=2), narrow(tokens_BT))
        assert not torch.equal(model(tokens_BT), narrow(tokens_BT))


def test_a_cache_that_would_outgrow_the_context_is_refused():
    model = build(small(), 21, seed=0).eval()
    cache = model.new_cache(3)
    with torch.inference_mode():
        model(some_tokens(21), cache=cache)
        with pytest.raises(UsageError, match=r"17 tokens .* context 16"):
            model(some_tokens(21, length=1), cache=cache)


def test_a_mask_of_documents_needs_a_token_that_ends_them():
    with pytest.raises(UsageError, match="this tokenizer has none"):
        build(small(document_mask=True), 21, seed=0)


class Counted(TorchDispatchMode):
    """Names of the operations that are run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_clamp_bounds_the_residual_stream_and_is_switched_between_two_steps() -> None:
    model = randomised(build(small(), 23, seed=0, device=torch.device("cpu")))
    tokens_BT = some_tokens(23)

    def reached() -> float:
        tap = Tap(Block.GAUGES, layers=2)
        with tap.open_for_forward():
            model(tokens_BT, tap=tap)
        read, _ = tap.by_name(tap.drain().tolist())
        return max(*map(abs, read["residual_max"]), *map(abs, read["residual_min"]))

    free, logits = reached(), model(tokens_BT)
    assert free > 1.0
    model.residual_clamp = 0.5
    assert reached() == 0.5
    model(tokens_BT, tokens_BT).backward()
    model.residual_clamp = 2 * free
    assert torch.equal(model(tokens_BT), logits), "room enough changes no bit"
    model.residual_clamp = 0.0
    assert reached() == free


def test_a_clamp_that_is_off_leaves_no_operation() -> None:
    model, tokens_BT = build(small(), 23, seed=0, device=torch.device("cpu")), some_tokens(23)
    counts = []
    for clamp in (0.0, 1.0):
        model.residual_clamp = clamp
        with Counted() as counted:
            model(tokens_BT)
        counts.append(counted.names)
    off, on = counts
    assert on - off == Counter({"clamp": 2}), "one a block"
    assert not off - on
