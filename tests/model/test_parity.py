"""Logits equal those of `transformers`, on random weights; the maps here are the whole maps."""

import pytest
import torch
from torch import Tensor, nn

from longhaul.config.model import ModelSection
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VOCAB, CONTEXT = 61, 24
OPT = {
    "layers": 3, "heads": 4, "width": 32, "context": CONTEXT, "positions": "learned",
    "norm": "layernorm", "activation": "relu", "bias": True, "qk_norm": False, "tied_head": True,
}  # fmt: skip
LLAMA = {
    "layers": 3, "heads": 6, "kv_heads": 2, "width": 48, "mlp_width": 40, "context": CONTEXT,
    "norm": "rmsnorm", "activation": "swiglu", "qk_norm": False,
}  # fmt: skip


def randomised(settings: ModelSection) -> GPT:
    model = build(settings, VOCAB, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
    return model.eval()


def assert_same_logits(model: GPT, theirs: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    tokens_BT = torch.randint(VOCAB, (3, CONTEXT), generator=generator)
    with torch.no_grad():
        logits = theirs.eval()(tokens_BT).logits
        torch.testing.assert_close(model(tokens_BT), logits, atol=1e-4, rtol=0)
    assert logits.std() > 0.1


def parts_of_qkv(qkv: Tensor, settings: ModelSection) -> dict[str, Tensor]:
    values = settings.key_heads * settings.head_width
    parts = qkv.split((settings.width, values, values))
    return dict(zip(("q_proj", "k_proj", "v_proj"), parts, strict=True))


def opt_state(model: GPT, settings: ModelSection) -> dict[str, Tensor]:
    state = {"embed_tokens.weight": model.tokens.weight}
    # OPT keeps two rows before the first position, as fairseq did; they are never looked up.
    state["embed_positions.weight"] = nn.functional.pad(model.positions.weight, (0, 0, 2, 0))
    if model.project_in is not None:
        state["project_in.weight"] = model.project_in.weight
        state["project_out.weight"] = model.project_out.weight
    for layer, block in enumerate(model.blocks):
        for kind in ("weight", "bias"):
            for name, part in parts_of_qkv(getattr(block.attention.qkv, kind), settings).items():
                state[f"layers.{layer}.self_attn.{name}.{kind}"] = part
            for ours, opt in (
                ("attention.out", "self_attn.out_proj"),
                ("attention_norm", "self_attn_layer_norm"),
                ("mlp.up", "fc1"),
                ("mlp.down", "fc2"),
                ("mlp_norm", "final_layer_norm"),
            ):
                state[f"layers.{layer}.{opt}.{kind}"] = getattr(block.get_submodule(ours), kind)
    if model.final_norm is not None:
        state["final_layer_norm.weight"] = model.final_norm.weight
        state["final_layer_norm.bias"] = model.final_norm.bias
    whole = {f"model.decoder.{name}": weight for name, weight in state.items()}
    return whole | {"lm_head.weight": model.tokens.weight}


@pytest.mark.parametrize(
    "changes",
    [{}, {"split_score_scale": True}, {"norm_placement": "post", "embedding_width": 16}],
    ids=["opt-125m", "scores of run 11.10", "opt-350m"],
)
def test_logits_equal_those_of_transformers_opt(changes):
    settings = ModelSection.model_validate(OPT | changes)
    model = randomised(settings)
    config = transformers.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        ffn_dim=settings.inner_width,
        num_attention_heads=settings.heads,
        max_position_embeddings=CONTEXT,
        do_layer_norm_before=settings.norm_placement == "pre",
        word_embed_proj_dim=settings.table_width,
        activation_function="relu",
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )
    theirs = transformers.OPTForCausalLM(config)
    theirs.load_state_dict(opt_state(model, settings))
    assert_same_logits(model, theirs)


def llama_state(model: GPT, settings: ModelSection) -> dict[str, Tensor]:
    state = {
        "model.embed_tokens.weight": model.tokens.weight,
        "model.norm.weight": model.final_norm.weight,
        "lm_head.weight": model.head.weight,
    }
    for layer, block in enumerate(model.blocks):
        prefix = f"model.layers.{layer}"
        for name, part in parts_of_qkv(block.attention.qkv.weight, settings).items():
            state[f"{prefix}.self_attn.{name}.weight"] = part
        gate, up = block.mlp.up.weight.chunk(2)
        state[f"{prefix}.mlp.gate_proj.weight"] = gate
        state[f"{prefix}.mlp.up_proj.weight"] = up
        for ours, llama in (
            ("attention.out", "self_attn.o_proj"),
            ("mlp.down", "mlp.down_proj"),
            ("attention_norm", "input_layernorm"),
            ("mlp_norm", "post_attention_layernorm"),
        ):
            state[f"{prefix}.{llama}.weight"] = block.get_submodule(ours).weight
    return state


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3"])
def test_logits_equal_those_of_transformers_llama(scaling):
    stretched = {"rotary_factor": 4.0, "rotary_original_context": 12} if scaling != "none" else {}
    settings = ModelSection.model_validate(LLAMA | {"rotary_scaling": scaling} | stretched)
    model = randomised(settings)
    rope = {"rope_type": "default" if scaling == "none" else scaling, "factor": 4.0}
    if scaling == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope |= {"original_max_position_embeddings": 12}
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=settings.width,
        intermediate_size=settings.inner_width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_heads,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=settings.norm_eps,
        rope_theta=settings.rotary_base,
        rope_scaling=rope,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    theirs = transformers.LlamaForCausalLM(config)
    theirs.load_state_dict(llama_state(model, settings))
    assert_same_logits(model, theirs)
