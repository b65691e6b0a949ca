"""Gemma 2 (arXiv 2408.00118): norms before and after each sub-layer, capped scores and logits."""

import math

from longhaul.config.model import ModelSection
from longhaul.interop.hf.family import Family, Values
from longhaul.interop.hf.llama import ROTARY, add_maps, common_settings, llama_config
from longhaul.interop.hf.places import Layout
from longhaul.interop.hf.published import Published

_ACTIVATIONS = {"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu", "silu": "swiglu"}
_NORMS = {
    "attention_norm": "input_layernorm", "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm", "mlp_out_norm": "post_feedforward_layernorm",
}  # fmt: skip


def _config(model: ModelSection) -> Values:
    config = llama_config(model)
    del config["mlp_bias"], config["hidden_act"]
    kinds = ["full" if model.window_of(n) is None else "sliding" for n in range(model.layers)]
    scalar = model.key_width if model.score_scale is None else model.score_scale**-2
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    return config | {
        "hidden_activation": names[model.activation],
        "query_pre_attn_scalar": round(scalar),
        "attn_logit_softcapping": model.score_softcap or None,
        "final_logit_softcapping": model.logit_softcap or None,
        "sliding_window": model.window or model.context,
        "layer_types": [f"{kind}_attention" for kind in kinds],
    }  # fmt: skip


def _settings(theirs: Published) -> Values:
    theirs.must_be("attention_bias", False)
    theirs.must_be("use_bidirectional_attention", False, None)
    common = common_settings(theirs, _ACTIVATIONS, "hidden_activation")
    layers, kinds = common["layers"], [f"{kind}_attention" for kind in ("sliding", "full")]
    # Every second layer attends to all; said since it is a setting.
    if layers <= 10_000:
        theirs.must_be("layer_types", [kinds[n % 2] for n in range(layers)], None)
    caps = {
        ours: theirs.number(key) if theirs.has(key) else 0.0
        for ours, key in (
            ("score_softcap", "attn_logit_softcapping"),
            ("logit_softcap", "final_logit_softcapping"),
        )
    }
    own = common["head_width"] or common["width"] // common["heads"]
    scalar = theirs.number("query_pre_attn_scalar", 256.0)
    return common | caps | {
        "attention_out_norm": True, "mlp_out_norm": True,
        "score_scale": None if scalar == own else scalar**-0.5,
        "window": theirs.whole("sliding_window", 4096), "window_full_every": 2,
        "embedding_scale": common["width"] ** 0.5,
        "tied_head": theirs.flag("tie_word_embeddings", True),
    }  # fmt: skip


def _layout(model: ModelSection) -> Layout:
    layout = Layout(model)
    layout.table("tokens", "model.embed_tokens")
    for layer in range(model.layers):
        for ours, theirs in _NORMS.items():
            layout.norm(f"blocks.{layer}.{ours}", f"model.layers.{layer}.{theirs}", more=1.0)
    layout.norm("final_norm", "model.norm", more=1.0)
    add_maps(layout)
    layout.head("lm_head")
    return layout


def _scaled_by_width(model: ModelSection) -> bool:
    return math.isclose(model.embedding_scale, model.width**0.5, rel_tol=1e-6)


def _is_inverse_root(model: ModelSection) -> bool:
    """Its scale is 1 ÷ √ of a whole number."""
    scalar = (model.score_scale or 1.0) ** -2
    return math.isclose(scalar, round(scalar), rel_tol=1e-9)


GEMMA2 = Family(
    "gemma2", "Gemma2ForCausalLM",
    {**ROTARY, "activation": tuple(_ACTIVATIONS.values()), "window": ..., "window_full_every": ...,
     "attention_out_norm": (True,), "mlp_out_norm": (True,), "score_scale": _is_inverse_root,
     "score_softcap": ..., "logit_softcap": ..., "embedding_scale": _scaled_by_width},
    _config, _layout, _settings,
)  # fmt: skip
