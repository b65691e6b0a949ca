"""Llama and what was made after it: rotary positions, RMS norms, gated MLPs."""

import math
from collections.abc import Mapping

from longhaul.config.model import ModelSection
from longhaul.interop.hf.family import Family, Takes, Values
from longhaul.interop.hf.places import Constant, Layout, Place
from longhaul.interop.hf.published import Published

# Llama (arXiv 2302.13971, 2407.21783), Mistral (arXiv 2310.06825), Qwen 2 and 3 (arXiv 2407.10671,
# 2505.09388).

GATED = {"silu": "swiglu", "gelu": "geglu"}
_TURNS = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}
_OUR_QK_EPS = 1e-6
"""Of `model/attention.py`."""


def llama_config(model: ModelSection) -> Values:
    """Settings of Llama, which others have too."""
    gates = {ours: theirs for theirs, ours in GATED.items()}
    config: Values = {
        "hidden_size": model.width, "intermediate_size": model.inner_width,
        "num_hidden_layers": model.layers, "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_heads, "head_dim": model.key_width,
        "hidden_act": gates.get(model.activation), "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_eps, "rope_theta": model.rotary_base,
        "attention_bias": model.bias, "mlp_bias": model.bias,
        "attention_dropout": model.dropped_attention, "initializer_range": model.init_std,
    }  # fmt: skip
    return config | scaling_config(model)


def scaling_config(model: ModelSection) -> Values:
    """Their table of how rotary positions are stretched; empty if they are not."""
    if model.rotary_scaling == "none":
        return {}
    scaling: Values = {"rope_type": model.rotary_scaling, "factor": model.rotary_factor}
    if names := _TURNS.get(model.rotary_scaling):
        scaling["original_max_position_embeddings"] = model.rotary_original_context
        turns = model.rotary_slow_turns, model.fast_turns
        scaling |= dict(zip(names, turns, strict=True))
    if model.rotary_scaling == "yarn":
        scaling["attention_factor"] = model.attention_factor
        scaling["truncate"] = model.rotary_truncate
    return {"rope_scaling": scaling}


def _mistral_config(model: ModelSection) -> Values:
    config = llama_config(model)
    del config["attention_bias"], config["mlp_bias"]
    return config | {"sliding_window": model.window}


def _qwen_config(model: ModelSection) -> Values:
    config = llama_config(model)
    del config["mlp_bias"]
    if model.window is None:
        return config | {"use_sliding_window": False}
    kinds = ["full" if model.window_of(n) is None else "sliding" for n in range(model.layers)]
    return config | {
        "use_sliding_window": True, "sliding_window": model.window, "max_window_layers": 0,
        "layer_types": [f"{kind}_attention" for kind in kinds],
    }  # fmt: skip


def _llama_settings(theirs: Published) -> Values:
    bias = theirs.flag("attention_bias", False)
    theirs.must_be("mlp_bias", *((True,) if bias else (False, None)))
    return common_settings(theirs) | {"bias": bias}


def common_settings(
    theirs: Published, activations: Mapping[str, str] = GATED, activation: str = "hidden_act"
) -> Values:
    """Our settings of what Llama and others call alike; `activation` has one of `activations`."""
    width, heads = theirs.whole("hidden_size"), theirs.whole("num_attention_heads")
    each = theirs.whole("head_dim", max(1, width // heads))
    return {
        "layers": theirs.whole("num_hidden_layers"), "heads": heads, "width": width,
        "head_width": None if each * heads == width else each,
        "kv_heads": theirs.whole("num_key_value_heads", heads),
        "mlp_width": theirs.whole("intermediate_size"), "bias": False,
        "context": theirs.whole("max_position_embeddings"), "positions": "rotary",
        "norm": "rmsnorm", "norm_eps": theirs.number("rms_norm_eps", 1e-6), "qk_norm": False,
        "activation": theirs.one_of(activation, activations),
        "tied_head": theirs.flag("tie_word_embeddings", False),
    } | rotary_settings(theirs)  # fmt: skip


def rotary_settings(
    theirs: Published, base_name: str = "rope_theta", shares: bool = False
) -> Values:
    """Our settings of rotary positions; `shares`: whether a share of a head can be rotated."""
    # One table since transformers 5, before it the base beside a table of the stretching.
    table = theirs.table("rope_parameters" if theirs.has("rope_parameters") else "rope_scaling")
    base = table.number("rope_theta", theirs.number(base_name, 10_000.0))
    known = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
    key = "rope_type" if table.has("rope_type") else "type"
    kind = table.one_of(key, known, "default")
    if not shares:
        table.must_be("partial_rotary_factor", 1.0, None)
    settings: Values = {"rotary_base": base, "rotary_scaling": kind}
    if kind in _TURNS:
        context = theirs.whole("max_position_embeddings")
        original = table.whole("original_max_position_embeddings", context)
        theirs.must_be("original_max_position_embeddings", original, None)
        slow, fast = _TURNS[kind]
        settings |= {
            "rotary_original_context": original, "rotary_slow_turns": table.number(slow, 1.0),
            "rotary_fast_turns": table.number(fast, 32.0 if kind == "yarn" else 4.0),
        }  # fmt: skip
    if kind == "yarn":
        factor = table.number("factor")
        settings["rotary_attention_factor"] = _attention_factor(table, factor)
        settings["rotary_truncate"] = table.flag("truncate", True)
    elif kind != "none":
        factor = table.number("factor")
    return settings if kind == "none" else settings | {"rotary_factor": factor}


def _attention_factor(table: Published, stretched: float) -> float:
    """YaRN's, of what DeepSeek says of it, or else as the paper has it."""
    if table.has("attention_factor"):
        return table.number("attention_factor")
    grown = math.log(max(stretched, 1.0))
    if table.has("mscale") and table.has("mscale_all_dim"):
        above, below = table.number("mscale"), table.number("mscale_all_dim")
        return (0.1 * above * grown + 1) / (0.1 * below * grown + 1)
    return 0.1 * grown + 1


def _mistral_settings(theirs: Published) -> Values:
    window = theirs.whole("sliding_window") if theirs.has("sliding_window") else None
    return common_settings(theirs) | {"window": window}


def _qwen2_settings(theirs: Published) -> Values:
    return common_settings(theirs) | {"qkv_bias": True} | _qwen_windows(theirs)


def _qwen3_settings(theirs: Published) -> Values:
    theirs.must_be("attention_bias", False)
    own = {"qk_norm": True, "qk_norm_scale": True}
    return common_settings(theirs) | own | _qwen_windows(theirs)


def _qwen_windows(theirs: Published) -> Values:
    # Of those that were published none has layers with a window.
    theirs.must_be("use_sliding_window", False)
    return {"window": None}


def llama_layout(model: ModelSection) -> Layout:
    """Where Llama's weights lie, and those of others by the same names."""
    layout = Layout(model)
    layout.table("tokens", "model.embed_tokens")
    for layer in range(model.layers):
        own, its = f"blocks.{layer}", f"model.layers.{layer}"
        layout.norm(f"{own}.attention_norm", f"{its}.input_layernorm")
        layout.norm(f"{own}.mlp_norm", f"{its}.post_attention_layernorm")
    layout.norm("final_norm", "model.norm")
    add_maps(layout)
    layout.head("lm_head")
    return layout


def add_maps(layout: Layout) -> None:
    """The matrices of all layers, and the scales of queries and keys."""
    model = layout.settings
    keys, inner = model.key_heads * model.key_width, model.inner_width
    queries, learns = model.heads_width, model.qk_norm_scale
    # Where their norm of queries and keys adds another number to the mean square than ours, maps
    # that much larger give the same.
    scale = (model.norm_eps / _OUR_QK_EPS) ** 0.5 if model.qk_norm else 1.0
    factors = (scale, scale, 1.0) if scale != 1.0 else ()
    for layer in range(model.layers):
        own, its = f"blocks.{layer}", f"model.layers.{layer}"
        qkv = tuple(f"{its}.self_attn.{kind}_proj" for kind in "qkv")
        rows, bias, own_bias = (queries, keys, keys), model.bias, model.bias or model.qkv_bias
        layout.linear(
            f"{own}.attention.qkv", qkv, rows,
            bias=own_bias, own_bias=own_bias, factors=factors,
        )  # fmt: skip
        if model.qk_norm:
            for kind, ours in (("q", "query_scale"), ("k", "key_scale")):
                name = f"{its}.self_attn.{kind}_norm.weight"
                if learns:
                    layout.places[f"{own}.attention.{ours}.weight"] = Place((name,))
                else:
                    layout.constants[name] = Constant((model.key_width,), 1.0)
        out, down = (f"{its}.self_attn.o_proj",), (f"{its}.mlp.down_proj",)
        layout.linear(f"{own}.attention.out", out, (model.width,), bias=bias)
        up = tuple(f"{its}.mlp.{kind}_proj" for kind in ("gate", "up"))
        layout.linear(f"{own}.mlp.up", up, (inner, inner), bias=bias)
        layout.linear(f"{own}.mlp.down", down, (model.width,), bias=bias)


ROTARY: Takes = {
    "positions": ("rotary",), "norm": ("rmsnorm",), "activation": tuple(GATED.values()),
    "kv_heads": ..., "rotary_scaling": ..., "head_width": ...,
}  # fmt: skip

LLAMA = Family(
    "llama", "LlamaForCausalLM", {**ROTARY, "bias": ...},
    llama_config, llama_layout, _llama_settings,
)  # fmt: skip
MISTRAL = Family(
    "mistral", "MistralForCausalLM", {**ROTARY, "window": ...},
    _mistral_config, llama_layout, _mistral_settings,
)  # fmt: skip
QWEN2 = Family(
    "qwen2", "Qwen2ForCausalLM",
    {**ROTARY, "head_width": (None,), "window": ..., "window_full_every": ...,
     "qkv_bias": (True,)},
    _qwen_config, llama_layout, _qwen2_settings,
)  # fmt: skip
QWEN3 = Family(
    "qwen3", "Qwen3ForCausalLM",
    {**ROTARY, "window": ..., "window_full_every": ..., "qk_norm": (True,),
     "qk_norm_scale": ...},
    _qwen_config, llama_layout, _qwen3_settings,
)  # fmt: skip
