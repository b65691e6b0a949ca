"""GPT-NeoX (arXiv 2204.06745), and Pythia after it (arXiv 2304.01373): rotary positions in a share
of each head, layer norms, biases, attention and MLP side by side.
"""

from longhaul.config.model import ModelSection
from longhaul.interop.hf.family import Family, Values
from longhaul.interop.hf.gpt2 import GPT2_ACTIVATIONS
from longhaul.interop.hf.llama import rotary_settings, scaling_config
from longhaul.interop.hf.places import Layout
from longhaul.interop.hf.published import Published

# Both names of the tanh approximation compute the same; the last one is written.
_ACTIVATIONS = {"gelu_fast": "gelu_tanh", **GPT2_ACTIVATIONS}


def _config(model: ModelSection) -> Values:
    theirs = {ours: name for name, ours in _ACTIVATIONS.items()}
    return {
        "hidden_size": model.width, "intermediate_size": model.inner_width,
        "num_hidden_layers": model.layers, "num_attention_heads": model.heads,
        "hidden_act": theirs[model.activation], "max_position_embeddings": model.context,
        "layer_norm_eps": model.norm_eps, "rotary_emb_base": model.rotary_base,
        "rotary_pct": model.rotary_share, "attention_bias": True,
        "use_parallel_residual": model.parallel_residual, "hidden_dropout": model.dropout,
        "attention_dropout": model.dropped_attention, "initializer_range": model.init_std,
    } | scaling_config(model)  # fmt: skip


def _settings(theirs: Published) -> Values:
    theirs.must_be("attention_bias", True)
    table = theirs.table("rope_parameters")
    width = theirs.whole("hidden_size")
    return {
        "layers": theirs.whole("num_hidden_layers"),
        "heads": theirs.whole("num_attention_heads"), "width": width,
        "mlp_width": theirs.whole("intermediate_size"), "bias": True,
        "context": theirs.whole("max_position_embeddings"), "positions": "rotary",
        "rotary_share": table.number("partial_rotary_factor", theirs.number("rotary_pct", 0.25)),
        "norm": "layernorm", "norm_eps": theirs.number("layer_norm_eps", 1e-5), "qk_norm": False,
        "parallel_residual": theirs.flag("use_parallel_residual", True),
        "activation": theirs.one_of("hidden_act", _ACTIVATIONS, "gelu"),
        "tied_head": theirs.flag("tie_word_embeddings", False),
    } | rotary_settings(theirs, "rotary_emb_base", shares=True)  # fmt: skip


def _layout(model: ModelSection) -> Layout:
    layout, width, inner = Layout(model), model.width, model.inner_width
    layout.table("tokens", "gpt_neox.embed_in")
    for layer in range(model.layers):
        own, its = f"blocks.{layer}", f"gpt_neox.layers.{layer}"
        layout.norm(f"{own}.attention_norm", f"{its}.input_layernorm", bias=True)
        layout.norm(f"{own}.mlp_norm", f"{its}.post_attention_layernorm", bias=True)
        for ours, theirs, rows, heads in (
            ("attention.qkv", "attention.query_key_value", 3 * width, model.heads),
            ("attention.out", "attention.dense", width, 0),
            ("mlp.up", "mlp.dense_h_to_4h", inner, 0),
            ("mlp.down", "mlp.dense_4h_to_h", width, 0),
        ):
            names = f"{own}.{ours}", (f"{its}.{theirs}",)
            layout.linear(*names, (rows,), bias=True, heads=heads)
    layout.norm("final_norm", "gpt_neox.final_layer_norm", bias=True)
    layout.head("embed_out")
    return layout


GPT_NEOX = Family(
    "gpt_neox", "GPTNeoXForCausalLM",
    {"positions": ("rotary",), "rotary_share": ..., "rotary_scaling": ..., "bias": ...,
     "parallel_residual": ..., "activation": tuple(GPT2_ACTIVATIONS.values())},
    _config, _layout, _settings, "gpt_neox.",
)  # fmt: skip
