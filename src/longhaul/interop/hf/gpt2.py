"""GPT-2 and OPT: positions from a table, layer norms, biases."""

from longhaul.config.model import ModelSection
from longhaul.interop.hf.family import Family, Values
from longhaul.interop.hf.places import Layout
from longhaul.interop.hf.published import Published

# GPT-2 ("Language Models are Unsupervised Multitask Learners").

GPT2_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu": "gelu", "relu": "relu", "relu2": "relu2"}


def _gpt2_config(model: ModelSection) -> Values:
    theirs = {ours: name for name, ours in GPT2_ACTIVATIONS.items()}
    own = model.embedding_dropout
    return {
        "n_positions": model.context, "n_embd": model.width, "n_layer": model.layers,
        "n_head": model.heads, "n_inner": model.inner_width,
        "activation_function": theirs[model.activation], "layer_norm_epsilon": model.norm_eps,
        "resid_pdrop": model.dropout, "attn_pdrop": model.dropped_attention,
        "embd_pdrop": model.dropout if own is None else own, "initializer_range": model.init_std,
    }  # fmt: skip


def _gpt2_settings(theirs: Published) -> Values:
    theirs.must_be("scale_attn_weights", True)
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        theirs.must_be(key, False)
    width = theirs.whole("n_embd")
    return {
        "layers": theirs.whole("n_layer"), "heads": theirs.whole("n_head"), "width": width,
        "mlp_width": theirs.whole("n_inner", 4 * width), "context": theirs.whole("n_positions"),
        "positions": "learned", "norm": "layernorm", "bias": True, "qk_norm": False,
        "norm_eps": theirs.number("layer_norm_epsilon", 1e-5),
        "activation": theirs.one_of("activation_function", GPT2_ACTIVATIONS, "gelu_new"),
        "tied_head": theirs.flag("tie_word_embeddings", True),
    }  # fmt: skip


def _gpt2_layout(model: ModelSection) -> Layout:
    layout = Layout(model)
    layout.table("tokens", "transformer.wte")
    layout.table("positions", "transformer.wpe")
    width, inner = model.width, model.inner_width
    for layer in range(model.layers):
        own, its = f"blocks.{layer}", f"transformer.h.{layer}"
        layout.norm(f"{own}.attention_norm", f"{its}.ln_1", bias=True)
        layout.norm(f"{own}.mlp_norm", f"{its}.ln_2", bias=True)
        for ours, theirs, rows in (
            ("attention.qkv", "attn.c_attn", 3 * width),
            ("attention.out", "attn.c_proj", width),
            ("mlp.up", "mlp.c_fc", inner),
            ("mlp.down", "mlp.c_proj", width),
        ):
            names = f"{own}.{ours}", (f"{its}.{theirs}",)
            layout.linear(*names, (rows,), bias=True, transposed=True)
    layout.norm("final_norm", "transformer.ln_f", bias=True)
    layout.head("lm_head")
    return layout


# OPT (arXiv 2205.01068).


def _opt_config(model: ModelSection) -> Values:
    return {
        "hidden_size": model.width, "num_hidden_layers": model.layers,
        "ffn_dim": model.inner_width, "num_attention_heads": model.heads,
        "max_position_embeddings": model.context, "word_embed_proj_dim": model.table_width,
        "do_layer_norm_before": model.norm_placement == "pre", "activation_function": "relu",
        "dropout": model.dropout, "attention_dropout": model.dropped_attention,
        "init_std": model.init_std, "enable_bias": True, "layer_norm_elementwise_affine": True,
    }  # fmt: skip


def _opt_settings(theirs: Published) -> Values:
    theirs.must_be("enable_bias", True)
    theirs.must_be("layer_norm_elementwise_affine", True)
    theirs.must_be("_remove_final_layer_norm", False)
    width = theirs.whole("hidden_size")
    before = theirs.flag("do_layer_norm_before", True)
    narrow = theirs.whole("word_embed_proj_dim", width)
    return {
        "layers": theirs.whole("num_hidden_layers"),
        "heads": theirs.whole("num_attention_heads"), "width": width,
        "mlp_width": theirs.whole("ffn_dim"), "context": theirs.whole("max_position_embeddings"),
        "positions": "learned", "norm": "layernorm", "norm_eps": 1e-5, "bias": True,
        "norm_placement": "pre" if before else "post", "qk_norm": False,
        "activation": theirs.one_of("activation_function", {"relu": "relu"}, "relu"),
        "tied_head": theirs.flag("tie_word_embeddings", True),
        "embedding_width": None if narrow == width else narrow,
    }  # fmt: skip


def _opt_layout(model: ModelSection) -> Layout:
    layout, decoder = Layout(model), "model.decoder"
    layout.table("tokens", f"{decoder}.embed_tokens")
    # Two rows before the first position, as fairseq had them; they are never looked up.
    layout.table("positions", f"{decoder}.embed_positions", rows_before=2)
    if model.table_width != model.width:
        layout.table("project_in", f"{decoder}.project_in")
        layout.table("project_out", f"{decoder}.project_out")
    width, inner = model.width, model.inner_width
    for layer in range(model.layers):
        own, its = f"blocks.{layer}", f"{decoder}.layers.{layer}"
        layout.norm(f"{own}.attention_norm", f"{its}.self_attn_layer_norm", bias=True)
        layout.norm(f"{own}.mlp_norm", f"{its}.final_layer_norm", bias=True)
        qkv = tuple(f"{its}.self_attn.{kind}_proj" for kind in "qkv")
        layout.linear(f"{own}.attention.qkv", qkv, (width,) * 3, bias=True)
        for ours, theirs, rows in (
            ("attention.out", "self_attn.out_proj", width),
            ("mlp.up", "fc1", inner),
            ("mlp.down", "fc2", width),
        ):
            layout.linear(f"{own}.{ours}", (f"{its}.{theirs}",), (rows,), bias=True)
    if model.norm_placement == "pre":
        layout.norm("final_norm", f"{decoder}.final_layer_norm", bias=True)
    layout.head("lm_head")
    return layout


OPT = Family(
    "opt", "OPTForCausalLM",
    {"activation": ("relu",), "bias": ..., "norm_placement": ..., "embedding_width": ...,
     "norm_eps": (1e-5,)},
    _opt_config, _opt_layout, _opt_settings,
)  # fmt: skip
GPT2 = Family(
    "gpt2", "GPT2LMHeadModel",
    {"activation": tuple(GPT2_ACTIVATIONS.values()), "bias": ...},
    _gpt2_config, _gpt2_layout, _gpt2_settings, "transformer.",
)  # fmt: skip
