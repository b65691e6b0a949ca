"""Published weights become a recipe and a model that computes what theirs computes; nothing in a
folder is run, and a damaged one is a message."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from interop.hf.conftest import SHAPES, exported, tokens_of
from longhaul.config.load import load_recipe
from longhaul.core.errors import DataError, LonghaulError, RecipeError
from longhaul.core.pieces import Piece, Pieces
from longhaul.data.tokenizing import ByteTokenizer
from longhaul.interop.hf.given import fill, identity_of, refuse_unfit
from longhaul.interop.hf.recipe import recipe_for
from longhaul.model.initialise import build
from longhaul.train.state import ModelState

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VOCAB = 257
ROPE = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 12}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 5e4, "factor": 3.0,
        "original_max_position_embeddings": 8}  # fmt: skip
SMALL = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 24,
}  # fmt: skip
NOT_OF_NEOX = "num_key_value_heads", "head_dim"
THEIRS = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24},
    "gpt2 with a head": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24,
                         "tie_word_embeddings": False, "activation_function": "relu"},
    "opt": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
            "max_position_embeddings": 24, "word_embed_proj_dim": 32},
    "opt narrow": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "ffn_dim": 48, "max_position_embeddings": 24, "word_embed_proj_dim": 16,
                   "do_layer_norm_before": False},
    "llama": SMALL,
    "llama stretched": SMALL | {"rope_parameters": ROPE, "tie_word_embeddings": True},
    "llama stretched by other turns": SMALL | {
        "rope_parameters": ROPE | {"low_freq_factor": 0.3, "high_freq_factor": 1.5}
    },
    "llama stretched by yarn": SMALL | {"rope_parameters": YARN},
    "llama stretched by yarn as DeepSeek has it": SMALL | {
        "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.5, "truncate": False,
                                   "beta_fast": 3.0, "beta_slow": 0.2}
    },
    "llama with biases": SMALL | {"attention_bias": True, "mlp_bias": True},
    "llama with narrow heads": SMALL | {"head_dim": 4},
    "gpt_neox": {name: SMALL[name] for name in SMALL if name not in NOT_OF_NEOX},
    "gpt_neox of another kind": {name: SMALL[name] for name in SMALL if name not in NOT_OF_NEOX} | {
        "use_parallel_residual": False, "hidden_act": "gelu_fast", "tie_word_embeddings": True,
        "rope_parameters": YARN | {"partial_rotary_factor": 0.5},
    },
    "mistral": SMALL | {"sliding_window": 7},
    "qwen2": {name: value for name, value in SMALL.items() if name != "head_dim"},
    "gemma2": SMALL | {"query_pre_attn_scalar": 7, "sliding_window": 5},
    "qwen3 stretched by yarn": SMALL | {"rope_parameters": YARN},
    "qwen3": SMALL | {"head_dim": 12, "rms_norm_eps": 1e-5},
}  # fmt: skip


def save_theirs(folder: Path, name: str, vocab: int = VOCAB) -> nn.Module:
    """A model of transformers with random weights, saved by it, a tokenizer beside it."""
    torch.manual_seed(0)
    values = {"vocab_size": vocab, "pad_token_id": None} | THEIRS[name]
    config = transformers.AutoConfig.for_model(name.split()[0], **values)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(ByteTokenizer(end_of_text=True).content())
    return model


def imported(folder: Path, place: Path):
    """Recipe and model of a run that begins with the weights in a folder."""
    _, text = recipe_for(folder, "own")
    path = place / "own.toml"
    path.write_text(text)
    recipe = load_recipe(str(path)).recipe
    refuse_unfit(recipe)
    model = build(recipe.model, VOCAB, seed=1, end_of_text=VOCAB - 1)
    fill(ModelState(model), recipe)
    return recipe, model.eval()


@pytest.mark.parametrize("name", THEIRS)
def test_what_transformers_saved_computes_the_same_here(name, tmp_path):
    theirs = save_theirs(tmp_path / "theirs", name, vocab=260)
    _, model = imported(tmp_path / "theirs", tmp_path)
    tokens_BT = torch.randint(VOCAB, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = theirs(tokens_BT).logits[..., :VOCAB]
        torch.testing.assert_close(model(tokens_BT), logits, atol=1e-4, rtol=0)
    assert logits.std() > 0.1


@pytest.mark.parametrize("family", SHAPES)
def test_an_export_comes_back_bit_by_bit(family, written, tmp_path):
    made = exported(SHAPES[family])
    recipe, model = imported(written(made, shard_bytes=20_000), tmp_path)
    tokens_BT = tokens_of(made)
    with torch.no_grad():
        before, after = made.model(tokens_BT), model(tokens_BT)
    # Gemma's norms keep their scale less 1, which rounds it.
    torch.testing.assert_close(after, before, atol=1e-6 if family == "gemma2" else 0, rtol=0)
    identity = identity_of(recipe)
    assert identity["family"] == family
    assert len(identity["sha256"]) == 64


def test_names_of_a_model_without_its_head_are_known(tmp_path):
    folder = tmp_path / "theirs"
    save_theirs(folder, "gpt2")
    _, before = imported(folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    save_file(bare, folder / "model.safetensors")
    _, model = imported(folder, tmp_path)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before.get_parameter(name))


def test_a_rank_fills_its_own_pieces_alone(tmp_path):
    save_theirs(tmp_path / "theirs", "llama")
    recipe, model = imported(tmp_path / "theirs", tmp_path)
    name = "blocks.1.mlp.up.weight"
    whole = model.get_parameter(name).detach()
    # Every second stretch of its rows, as a tensor rank has them.
    held = (Piece((20, 0), (0, 0), (10, 32)), Piece((60, 0), (10, 0), (10, 32)))
    rest = (Piece((0, 0), (0, 0), (20, 32)), Piece((30, 0), (20, 0), (30, 32)),
            Piece((70, 0), (50, 0), (10, 32)))  # fmt: skip

    class Part:
        own = torch.zeros(20, 32, dtype=torch.bfloat16)

        def tensors(self):
            return {name: self.own}

        def pieces(self):
            return {name: Pieces((80, 32), (held, rest), holder=0)}

    fill(Part(), recipe)
    wanted = torch.cat((whole[20:30], whole[60:70])).to(torch.bfloat16)
    assert torch.equal(Part.own, wanted)


# What a stranger may put into a folder.


class Bait:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bait(folder / "touched")))


def _pickled_in_disguise(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bait(folder / "touched")))


def _index_to(name: object):
    def spoil(folder: Path) -> None:
        table = {"weight_map": {"model.norm.weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(table))

    return spoil


def _cut_short(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def _a_pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def _quantized(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int8)
    save_file(weights, folder / "model.safetensors")


def _without_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")


def _config(**changes: object):
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))

    return spoil


HOSTILE = {
    "pickled weights": (_pickled, r"pytorch_model\.bin: a pickle is a program"),
    "a pickle called safetensors": (_pickled_in_disguise, "cannot be read"),
    "a path out of the folder": (_index_to("../other.safetensors"), "not a file beside it"),
    "a path from the root": (_index_to("/etc/passwd"), "not a file beside it"),
    "a pickle in the index": (_index_to("pytorch_model.bin"), "not a file beside it"),
    "a number in the index": (_index_to(7), "not a file beside it|cannot be read"),
    "a file that is not there": (_index_to("a.safetensors"), "cannot be read"),
    "half a file": (_cut_short, "cannot be read"),
    "a pipe": (_a_pipe, "neither|not a plain file"),
    "quantized": (_quantized, "I8"),
    "a weight missing": (_without_a_weight, r"layers\.1\.mlp\.up_proj.*not among"),
    "code": (_config(auto_map={"AutoModel": "evil.Model"}), "auto_map names code"),
    "another family": (_config(model_type="mamba"), "mamba"),
    "no family": (_config(model_type=["llama"]), "not a family"),
    "endless layers": (_config(num_hidden_layers=10**12), "too few bytes"),
    "endless width": (_config(hidden_size=10**15, head_dim=None), "too few bytes"),
    "endless context": (_config(max_position_embeddings=10**18), "context of"),
    "more rows than weights": (_config(vocab_size=10**15), "too few bytes"),
    "fewer rows than tokens": (_config(vocab_size=100), "257 tokens"),
    "a word for a number": (_config(num_attention_heads="4"), "num_attention_heads"),
    "true for a number": (_config(num_hidden_layers=True), "num_hidden_layers"),
    "heads that divide nothing": (_config(num_attention_heads=5, head_dim=None), "divide|head"),
    "an odd head width": (_config(head_dim=7), "head width"),
    "heads of another width": (_config(head_dim=4), "instead of"),
    "another activation": (_config(hidden_act="mish"), "mish"),
    "fast and slow pairs": (_config(rope_parameters=YARN | {"beta_fast": 0.5}), "slow pair"),
    "a shrinking": (_config(rope_parameters=YARN | {"factor": 0.5}), "greater than or equal to 1"),
    "no factor": (_config(rope_parameters=YARN | {"factor": None}), "factor is missing"),
    "endless turns": (_config(rope_parameters=YARN | {"beta_slow": 1e308}), "slow pair"),
    "two original contexts": (
        _config(rope_parameters=YARN, original_max_position_embeddings=9), "original_max_pos",
    ),
    "a share of the heads": (_config(rope_parameters={"partial_rotary_factor": 0.5}), "partial"),
    "another stretching": (_config(rope_parameters={"rope_type": "dynamic"}), "dynamic"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_folder_is_a_message_and_runs_nothing(what, tmp_path):
    folder = tmp_path / "theirs"
    save_theirs(folder, "llama")
    spoil, said = HOSTILE[what]
    spoil(folder)
    with pytest.raises(DataError, match=said) as refusal:
        recipe_for(folder, "own")
    assert isinstance(refusal.value, LonghaulError)
    assert "\n" not in refusal.value.message
    assert not (folder / "touched").exists()


def test_pickles_beside_safetensors_are_left_alone(tmp_path):
    folder = tmp_path / "theirs"
    save_theirs(folder, "llama")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bait(folder / "touched")))
    imported(folder, tmp_path)
    assert not (folder / "touched").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("model.layers=3", r"model\.layers: 3 here, 2 there"),
        ("model.norm_eps=0.1", r"model\.norm_eps"),
        ("model.qk_norm=true", r"model\.qk_norm = True"),
        ("model.window=4", r"model\.window = 4"),
        ('init.from="hf://a/b"', "is an address"),
    ],
)
def test_a_recipe_of_another_model_is_refused_before_anything_is_built(changed, said, tmp_path):
    save_theirs(tmp_path / "theirs", "llama")
    _, text = recipe_for(tmp_path / "theirs", "own")
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(RecipeError, match=said):
        refuse_unfit(load_recipe(str(tmp_path / "own.toml"), (changed,)).recipe)


def test_another_tokenizer_than_the_weights_have_rows_for_is_refused(tmp_path):
    save_theirs(tmp_path / "theirs", "gpt2")
    recipe, _ = imported(tmp_path / "theirs", tmp_path)
    with pytest.raises(DataError, match=r"tokens\.weight \[257, 32\] instead of \[99, 32\]"):
        fill(ModelState(build(recipe.model, 99, seed=1)), recipe)
