"""What a family of models is that others have a class for: what its settings are called, which of
our switches it has, and where its weights lie; used in both directions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from longhaul.config.model import ModelSection
from longhaul.interop.hf.places import Layout
from longhaul.interop.hf.published import Published

ALWAYS = frozenset((
    "layers", "heads", "width", "mlp_width", "context", "tied_head", "norm_eps", "norm_scale",
    "rotary_base",
))  # fmt: skip
"""Settings that every family can express at any value."""
NOT_AFTERWARDS = frozenset((
    "vocab_multiple", "position_init", "rotary_factor", "rotary_original_context",
    "rotary_slow_turns", "rotary_fast_turns", "rotary_attention_factor", "rotary_truncate",
    "split_score_scale", "window_stages", "document_mask", "z_loss",
    "ahead_stages", "dropout", "attention_dropout", "embedding_dropout", "init_std",
    "zero_projections", "zero_head",
))  # fmt: skip
"""Settings of training, or that say something only together with another one: they do not change
what a trained model computes of one document."""
PLAIN: Mapping[str, object] = {
    "kv_heads": None, "embedding_width": None, "positions": "learned", "rotary_scaling": "none",
    "rotary_share": 1.0,
    "norm": "layernorm", "norm_placement": "pre", "parallel_residual": False,
    "embedding_norm": False,
    "attention_out_norm": False, "mlp_out_norm": False, "mlp_inner_norm": False, "qk_norm": False,
    "score_scale": None, "score_softcap": 0.0,
    "qk_norm_scale": False, "qkv_bias": False, "head_width": None,
    "attention_head_scale": False, "window": None, "activation": "gelu_tanh", "bias": False,
    "embedding_scale": 1.0, "token_smear": False, "bigram_rows": 0, "logit_softcap": 0.0,
    "value_residual": False, "value_embeddings": 0, "input_mix": False, "unet_skips": False,
    "residual_clamp": 0.0, "window_full_every": 0,
}  # fmt: skip
"""Every other setting, with the value that stands for a family that says nothing else of it."""

Values = dict[str, Any]
Takes = Mapping[str, tuple[object, ...] | EllipsisType | Callable[[ModelSection], bool]]


@dataclass(frozen=True)
class Family:
    """One family."""

    model_type: str
    architecture: str
    takes: Takes
    """Setting → the values that it can express; `...`: any; or whether it can express a model's.
    Others must be as in `PLAIN`."""
    config: Callable[[ModelSection], Values]
    """Their settings."""
    layout: Callable[[ModelSection], Layout]
    settings: Callable[[Published], Values] | None = None
    """Ours, of theirs; None where it can be exported only."""
    prefix: str = "model."

    def refused(self, model: ModelSection) -> list[str]:
        """Switches of a model that it cannot express, as `model.name = value`."""
        found = []
        for name, value in _telling(model):
            taken = self.takes.get(name, ... if name in ALWAYS else (PLAIN[name],))
            fits = taken(model) if callable(taken) else taken is ... or value in taken
            if not fits:
                found.append(f"model.{name} = {value}")
        return found


def _telling(model: ModelSection) -> Iterator[tuple[str, object]]:
    """(setting, value) of what counts, equal forms of one thing alike."""
    alike: dict[str, object] = {}
    if model.heads_width == model.width:
        alike["head_width"] = None
    if model.bias:
        alike["qkv_bias"] = False
    if model.key_heads == model.heads:
        alike["kv_heads"] = None
    if model.table_width == model.width:
        alike["embedding_width"] = None
    if model.window is None or model.window >= model.context:
        alike |= {"window": None, "window_full_every": 0}
    for name in ModelSection.model_fields:
        if name not in NOT_AFTERWARDS:
            yield name, alike.get(name, getattr(model, name))
