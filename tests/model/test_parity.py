"""Logits equal those of `transformers`, on random weights, by the maps of `longhaul export`."""

import pytest
import torch
from torch import Tensor, nn

from longhaul.config.model import ModelSection
from longhaul.interop.hf.families import family_for
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VOCAB, CONTEXT = 61, 24
GPT2 = {
    "layers": 3, "heads": 4, "width": 32, "context": CONTEXT, "positions": "learned",
    "norm": "layernorm", "activation": "gelu_tanh", "bias": True, "qk_norm": False,
    "tied_head": True,
}  # fmt: skip
OPT = GPT2 | {"activation": "relu"}
LLAMA = {
    "layers": 3, "heads": 6, "kv_heads": 2, "width": 48, "mlp_width": 40, "context": CONTEXT,
    "norm": "rmsnorm", "activation": "swiglu", "qk_norm": False,
}  # fmt: skip
LLAMA3 = {"rotary_scaling": "llama3", "rotary_factor": 4.0, "rotary_original_context": 12}
GEMMA2 = LLAMA | {
    "head_width": 10, "activation": "geglu_tanh", "attention_out_norm": True,
    "mlp_out_norm": True, "score_softcap": 2.0, "logit_softcap": 5.0, "score_scale": 0.5,
    "window": 7, "window_full_every": 2, "embedding_scale": 48**0.5, "tied_head": True,
}  # fmt: skip
YARN = {"rotary_scaling": "yarn", "rotary_factor": 4.0, "rotary_original_context": 12,
        "rotary_slow_turns": 0.1, "rotary_fast_turns": 1.5}  # fmt: skip
NEOX = GPT2 | {"positions": "rotary", "activation": "gelu", "tied_head": False,
               "rotary_share": 0.25, "parallel_residual": True}  # fmt: skip
CASES = {
    "gpt2": GPT2,
    "gpt2 without biases": GPT2 | {"bias": False, "activation": "gelu"},
    "gpt2, norms without scale": GPT2 | {"norm_scale": False, "tied_head": False},
    "gpt2, squared ReLU": GPT2 | {"activation": "relu2", "mlp_width": 40},
    "opt-125m": OPT,
    "opt, scores of run 11.10": OPT | {"split_score_scale": True},
    "opt-350m": OPT | {"norm_placement": "post", "embedding_width": 16},
    "llama": LLAMA,
    "llama, linear": LLAMA | {"rotary_scaling": "linear", "rotary_factor": 4.0},
    "llama, llama3": LLAMA | LLAMA3,
    "llama, llama3 with turns of its own": LLAMA | LLAMA3 | {
        "rotary_slow_turns": 0.3, "rotary_fast_turns": 1.5
    },
    "llama, yarn": LLAMA | YARN,
    "qwen2, yarn": LLAMA | YARN | {
        "qkv_bias": True, "rotary_truncate": False, "rotary_attention_factor": 2.0
    },
    "llama, biases and geglu": LLAMA | {"bias": True, "activation": "geglu", "tied_head": True},
    "mistral": LLAMA | {"window": 7},
    "qwen3, unlearned": LLAMA | {"qk_norm": True},
    "llama, wide heads": LLAMA | {"head_width": 12},
    "qwen2": LLAMA | {"qkv_bias": True},
    "qwen2, windows": LLAMA | {"qkv_bias": True, "window": 5, "window_full_every": 2},
    "qwen3": LLAMA | {"qk_norm": True, "qk_norm_scale": True, "head_width": 6, "norm_eps": 1e-6},
    "gemma2": GEMMA2,
    "gemma2, all as others have it": GEMMA2 | {
        "score_softcap": 0.0, "logit_softcap": 0.0, "score_scale": None, "head_width": None,
        "window": None, "window_full_every": 0, "norm_scale": False, "tied_head": False,
    },
    "gpt_neox": NEOX,
    "gpt_neox, stretched": NEOX | YARN | {"rotary_share": 0.5, "rotary_base": 500.0},
    "gpt_neox, one after the other": NEOX | {
        "parallel_residual": False, "rotary_share": 1.0, "activation": "gelu_tanh", "mlp_width": 40,
        "bias": False, "norm_scale": False, "tied_head": True,
    },
    "qwen3, windows": LLAMA | {"qk_norm": True, "window": 7, "window_full_every": 2},
}  # fmt: skip


def randomised(settings: ModelSection) -> GPT:
    model = build(settings, VOCAB, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
    return model.eval()


def theirs_of(model: GPT) -> nn.Module:
    """The class of transformers for a model, with its weights."""
    family, settings = family_for(model.settings), model.settings
    config = transformers.AutoConfig.for_model(
        family.model_type, vocab_size=VOCAB, tie_word_embeddings=settings.tied_head,
        bos_token_id=0, eos_token_id=0, pad_token_id=None, **family.config(settings),
    )  # fmt: skip
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    assert type(theirs).__name__ == family.architecture
    layout, state = family.layout(settings), dict[str, Tensor]()
    for name, weight in model.named_parameters():
        state |= dict(layout.places[name].to_theirs(weight.detach()))
    for name, constant in layout.constants.items():
        state[name] = torch.full(constant.shape, constant.value)
    if settings.tied_head:
        state["lm_head.weight"] = model.tokens.weight.detach()
    # What GPT-NeoX's files call its head.
    theirs.load_state_dict({k.replace("embed_out", "lm_head"): v for k, v in state.items()})
    return theirs.eval()


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name):
    model = randomised(ModelSection.model_validate(CASES[name]))
    assert name.startswith(family_for(model.settings).model_type)
    generator = torch.Generator().manual_seed(1)
    tokens_BT = torch.randint(VOCAB, (3, CONTEXT), generator=generator)
    with torch.no_grad():
        logits = theirs_of(model)(tokens_BT).logits
        torch.testing.assert_close(model(tokens_BT), logits, atol=1e-4, rtol=0)
    assert logits.std() > 0.1


def with_exact_angles(theirs: nn.Module) -> nn.Module:
    """transformers computes angles in float32, which are off by 1e-4 at position 2,000."""
    rotary = next(m for m in theirs.modules() if type(m).__name__.endswith("RotaryEmbedding"))
    config = theirs.config
    base, width = config.rope_parameters["rope_theta"], config.head_dim
    exact = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)

    def angles(x, position_ids):
        turned = position_ids[..., None].double() * exact
        whole = torch.cat((turned, turned), dim=-1)
        return whole.cos().to(x.dtype), whole.sin().to(x.dtype)

    rotary.forward = angles
    return theirs


def test_long_contexts_equal_those_of_transformers_with_exact_angles():
    long = LLAMA | {"layers": 2, "heads": 2, "kv_heads": 1, "width": 32, "context": 4096}
    model = randomised(ModelSection.model_validate(long))
    tokens_BT = torch.randint(VOCAB, (1, 4096), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, weight in model.named_parameters():  # sharp attention: an angle tells
            weight.mul_(5.0 if "head" in name or "tokens" in name else 2.5)
        logits = with_exact_angles(theirs_of(model))(tokens_BT).logits
        torch.testing.assert_close(model(tokens_BT), logits, atol=1e-4, rtol=0)
