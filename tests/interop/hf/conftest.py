"""A small model of each family, and the folder it is exported to."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longhaul.config.load import load_recipe
from longhaul.config.model import ModelSection
from longhaul.data.tokenizing import ByteTokenizer, Tokenizer
from longhaul.interop.hf.families import family_for
from longhaul.interop.hf.folder import Exported, write_folder
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build

CONTEXT = 24
GPT2 = {
    "layers": 2, "heads": 2, "width": 16, "context": CONTEXT, "positions": "learned",
    "norm": "layernorm", "activation": "gelu_tanh", "bias": True, "qk_norm": False,
    "tied_head": True,
}  # fmt: skip
LLAMA = {
    "layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "mlp_width": 40, "context": CONTEXT,
    "norm": "rmsnorm", "activation": "swiglu", "qk_norm": False,
}  # fmt: skip
SHAPES = {
    "gpt2": GPT2,
    "opt": GPT2 | {"activation": "relu", "embedding_width": 8, "norm_placement": "post"},
    "llama": LLAMA | {"rotary_scaling": "linear", "rotary_factor": 2.0},
    "qwen2": LLAMA
    | {
        "qkv_bias": True,
        "rotary_scaling": "llama3",
        "rotary_original_context": 12,
        "rotary_slow_turns": 0.3,
        "rotary_fast_turns": 1.5,
    },
    "qwen3": LLAMA
    | {
        "qk_norm": True,
        "qk_norm_scale": True,
        "head_width": 12,
        "norm_eps": 1e-6,
        "rotary_scaling": "yarn",
        "rotary_factor": 4.0,
        "rotary_original_context": 12,
        "rotary_slow_turns": 0.2,
        "rotary_fast_turns": 1.5,
    },
    "gemma2": LLAMA
    | {
        "head_width": 12,
        "activation": "geglu_tanh",
        "attention_out_norm": True,
        "mlp_out_norm": True,
        "score_softcap": 5.0,
        "logit_softcap": 5.0,
        "score_scale": 0.25,
        "window": 7,
        "window_full_every": 2,
        "embedding_scale": 32**0.5,
        "tied_head": True,
    },
    "gpt_neox": GPT2
    | {
        "positions": "rotary",
        "rotary_share": 0.25,
        "parallel_residual": True,
        "activation": "gelu",
        "tied_head": False,
    },
    "mistral": LLAMA | {"window": 9, "tied_head": True},
    "longhaul": {
        "layers": 4,
        "heads": 4,
        "kv_heads": 2,
        "width": 32,
        "context": CONTEXT,
        "activation": "relu2",
        "embedding_width": 16,
        "norm_scale": False,
        "embedding_norm": True,
        "mlp_inner_norm": True,
        "qkv_bias": True,
        "attention_head_scale": True,
        "window": 7,
        "window_full_every": 3,
        "window_stages": [{"from_step": 0, "tokens": 5}],
        "document_mask": True,
        "token_smear": True,
        "bigram_rows": 97,
        "logit_softcap": 15.0,
        "value_residual": True,
        "value_embeddings": 2,
        "input_mix": True,
        "unet_skips": True,
        "residual_clamp": 30.0,
        "ahead_stages": [{"from_step": 0, "weights": [0.5]}],
        "dropout": 0.1,
        "zero_head": True,
    },
}
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen: \u00e9\u4e2d."

Export = Callable[..., Exported]


def randomised(settings: ModelSection, vocab_size: int, end_of_text: int | None) -> GPT:
    model = build(settings, vocab_size, seed=0, end_of_text=end_of_text)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.2, generator=generator)
    return model.eval()


def exported(
    changes: dict[str, object],
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.float32,
) -> Exported:
    """A model of random weights, as it would be exported."""
    own = tokenizer or ByteTokenizer(end_of_text=True)
    settings = ModelSection.model_validate_json(json.dumps(changes))
    recipe = load_recipe("drill").recipe.model_copy(update={"model": settings})
    model = randomised(settings, own.vocab_size, own.end_of_text)
    return Exported(model, family_for(settings), recipe, own, dtype)


def tokens_of(made: Exported) -> torch.Tensor:
    """Two windows of text."""
    numbers = [int(number) for number in made.tokenizer.encode(TEXT)]
    length = min(made.recipe.model.context, len(numbers) // 2)
    return torch.tensor([numbers[:length], numbers[length : 2 * length]])


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Exported], Path]:
    """Writes a folder."""

    def write(made: Exported, shard_bytes: int = 1 << 30) -> Path:
        folder = tmp_path / "exported"
        folder.mkdir()
        write_folder(folder, made, shard_bytes)
        return folder

    return write
