import pytest

from longhaul.config.model import ModelSection
from longhaul.config.model_combinations import model_problems

SHAPE = {"layers": 4, "heads": 4, "width": 32, "context": 16}
STAGE = {"from_step": 3, "tokens": 4}


def problems(**changes: object) -> list[tuple[tuple[str, ...], str]]:
    return list(model_problems(ModelSection.model_validate(SHAPE | changes)))


@pytest.mark.parametrize(
    ("changes", "blamed", "told"),
    [
        ({"heads": 5}, "model.heads", "5 heads do not divide model.width 32; 4 would"),
        ({"heads": 32}, "model.heads", "an even head width, not 32/32 = 1"),
        ({"kv_heads": 3}, "model.kv_heads", "do not divide model.heads 4; 2 would"),
        ({"kv_heads": 8}, "model.kv_heads", "do not divide model.heads 4; 4 would"),
        ({"position_init": "sinusoidal"}, "model.position_init", "model.positions is rotary"),
        (
            {"rotary_scaling": "llama3", "positions": "learned"},
            "model.rotary_scaling",
            "model.positions is learned",
        ),
        (
            {"rotary_truncate": False},
            "model.rotary_truncate",
            "False is read by yarn scaling alone",
        ),
        (
            {"rotary_scaling": "llama3", "rotary_attention_factor": 1.2},
            "model.rotary_attention_factor",
            "model.rotary_scaling is llama3",
        ),
        ({"rotary_slow_turns": 0.5}, "model.rotary_slow_turns", "0.5 is read by llama3"),
        (
            {"rotary_scaling": "llama3", "rotary_fast_turns": 0.5},
            "model.rotary_slow_turns",
            "1 turns of a slow pair are not fewer than the 0.5 of a fast one",
        ),
        ({"rotary_share": 0.4}, "model.rotary_share", "head's width 8 are 3 channels"),
        ({"rotary_share": 0.1}, "model.rotary_share", "head's width 8 are 0 channels"),
        ({"rotary_share": 0.5, "positions": "none"}, "model.rotary_share", "nothing is rotated"),
        (
            {"parallel_residual": True, "norm_placement": "post"},
            "model.parallel_residual",
            "model.norm_placement is post",
        ),
        ({"window_full_every": 2}, "model.window_full_every", "no layer has a window"),
        ({"window_stages": (STAGE,)}, "model.window_stages", "no layer has a window"),
        ({"window": 8, "window_full_every": 1}, "model.window_full_every", "every layer"),
        ({"window": 8, "window_stages": (STAGE, STAGE)}, "model.window_stages", "same step"),
        ({"tied_head": True, "zero_head": True}, "model.zero_head", "cannot start at zero"),
        (
            {"embedding_scale": 4.0, "embedding_norm": True},
            "model.embedding_scale",
            "undoes a factor of 4",
        ),
        ({"value_embeddings": 3}, "model.value_embeddings", "do not fit 4 layers; at most 2"),
        ({"unet_skips": True, "layers": 1}, "model.unet_skips", "model.layers is 1"),
        ({"value_residual": True, "layers": 1}, "model.value_residual", "model.layers is 1"),
    ],
)
def test_what_cannot_work_is_told_with_the_setting_to_blame(
    changes: dict[str, object], blamed: str, told: str
) -> None:
    [(involved, text)] = problems(**changes)
    assert involved[0] == blamed
    assert told in text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 1},
        {"positions": "learned", "position_init": "sinusoidal"},
        {"window": 8, "window_full_every": 2, "window_stages": (STAGE,)},
        {"embedding_scale": 4.0, "embedding_norm": True, "positions": "learned"},
        {"value_embeddings": 2},
        {"unet_skips": True, "layers": 3},
        {"norm_placement": "post", "attention_out_norm": True, "zero_projections": True},
        {"heads": 32, "positions": "none"},
    ],
)
def test_what_can_work_is_let_through(changes: dict[str, object]) -> None:
    assert problems(**changes) == []
