"""Switches of the model that cannot work together; see `combinations.py`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from longhaul.config.model import ModelSection

Combination = tuple[tuple[str, ...], str]
"""The dotted settings involved, the one to blame first, and why."""


_STRETCHINGS = {
    "rotary_slow_turns": ("llama3", "yarn"), "rotary_fast_turns": ("llama3", "yarn"),
    "rotary_attention_factor": ("yarn",), "rotary_truncate": ("yarn",),
}  # fmt: skip
"""Which stretchings of rotary positions know a setting."""


def model_problems(model: ModelSection) -> Iterator[Combination]:
    """Every impossible combination of switches."""
    yield from _heads(model)
    yield from _stretching(model)
    yield from _windows(model)
    yield from _switches(model)


def _heads(model: ModelSection) -> Iterator[Combination]:
    if model.head_width is None and model.width % model.heads:
        better = _nearest_divisor(model.width, model.heads)
        yield (
            ("model.heads", "model.width"),
            f"{model.heads} heads do not divide model.width {model.width}; {better} would",
        )
    elif model.positions == "rotary" and model.rotary_share < 1:
        if model.rotated_width % 2 or not model.rotated_width:
            yield (
                ("model.rotary_share", "model.heads", "model.width", "model.head_width"),
                f"{model.rotary_share:g} of a head's width {model.key_width} are "
                f"{model.rotated_width} channels, which make no pairs",
            )
    elif model.positions == "rotary" and model.key_width % 2:
        shown = "" if model.head_width else f"{model.width}/{model.heads} = "
        yield (
            ("model.heads", "model.width", "model.head_width", "model.positions"),
            f"rotary positions need an even head width, not {shown}{model.key_width}",
        )
    if model.kv_heads and model.heads % model.kv_heads:
        better = _nearest_divisor(model.heads, model.kv_heads)
        yield (
            ("model.kv_heads", "model.heads"),
            f"{model.kv_heads} heads of keys and values do not divide model.heads {model.heads}; "
            f"{better} would",
        )


def _stretching(model: ModelSection) -> Iterator[Combination]:
    if model.rotary_scaling != "none" and model.positions != "rotary":
        yield (
            ("model.rotary_scaling", "model.positions"),
            f"{model.rotary_scaling} scaling stretches rotary positions; "
            f"model.positions is {model.positions}",
        )
    if model.rotary_share != 1.0 and model.positions != "rotary":
        yield (
            ("model.rotary_share", "model.positions"),
            f"nothing is rotated of which {model.rotary_share:g} would be a share; "
            f"model.positions is {model.positions}",
        )
    for name, scalings in _STRETCHINGS.items():
        given = getattr(model, name)
        if given != ModelSection.model_fields[name].default and (
            model.rotary_scaling not in scalings
        ):
            yield (
                (f"model.{name}", "model.rotary_scaling"),
                f"{given} is read by {' and '.join(scalings)} scaling alone; "
                f"model.rotary_scaling is {model.rotary_scaling}",
            )
    knows_turns = model.rotary_scaling in _STRETCHINGS["rotary_slow_turns"]
    if knows_turns and model.fast_turns <= model.rotary_slow_turns:
        yield (
            ("model.rotary_slow_turns", "model.rotary_fast_turns"),
            f"{model.rotary_slow_turns:g} turns of a slow pair are not fewer than the "
            f"{model.fast_turns:g} of a fast one",
        )


def _windows(model: ModelSection) -> Iterator[Combination]:
    if model.window is None:
        for name in ("window_full_every", "window_stages"):
            if getattr(model, name):
                yield (
                    (f"model.{name}", "model.window"),
                    "no layer has a window without model.window",
                )
    elif model.window_full_every == 1:
        yield (
            ("model.window_full_every", "model.window"),
            "1 lets every layer attend without the window; 2 or more would leave some with it",
        )
    for name in ("window_stages", "ahead_stages"):
        if repeated(stage.from_step for stage in getattr(model, name)):
            yield (f"model.{name}",), "two stages begin at the same step"


def _switches(model: ModelSection) -> Iterator[Combination]:
    if model.position_init != "normal" and model.positions != "learned":
        yield (
            ("model.position_init", "model.positions"),
            f"{model.position_init} positions are the start of a learned table; "
            f"model.positions is {model.positions}",
        )
    if model.parallel_residual and model.norm_placement == "post":
        yield (
            ("model.parallel_residual", "model.norm_placement"),
            "attention and MLP read the stream side by side, each through a norm before it; "
            "model.norm_placement is post",
        )
    if model.qk_norm_scale and not model.qk_norm:
        yield (
            ("model.qk_norm_scale", "model.qk_norm"),
            "it scales what model.qk_norm has normalised, which is off",
        )
    if model.zero_head and model.tied_head:
        yield (
            ("model.zero_head", "model.tied_head"),
            "a tied head is the token table, which cannot start at zero; untie it",
        )
    if model.embedding_norm and model.embedding_scale != 1.0 and model.positions != "learned":
        yield (
            ("model.embedding_scale", "model.embedding_norm"),
            f"the norm after it undoes a factor of {model.embedding_scale:g}",
        )
    if 2 * model.value_embeddings > model.layers:
        yield (
            ("model.value_embeddings", "model.layers"),
            f"{model.value_embeddings} tables for the first and as many for the last layers do not "
            f"fit {model.layers} layers; at most {model.layers // 2} would",
        )
    if model.layers == 1:
        for name in ("unet_skips", "value_residual"):
            if getattr(model, name):
                yield (
                    (f"model.{name}", "model.layers"),
                    "there is nothing to carry to a later layer: model.layers is 1",
                )


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return min(divisors, key=lambda divisor: (abs(divisor - wanted), divisor))


def repeated(values: Iterable[Any]) -> list[Any]:
    """Values that occur more than once."""
    return sorted(value for value, times in Counter(values).items() if times > 1)
