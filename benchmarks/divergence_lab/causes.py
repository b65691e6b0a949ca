"""The ways to go wrong: for each mechanism a family of seeded runs.

Enters: a mechanism and a number. Leaves: a `Run` whose settings, fault or later settings hold the
cause; its twin is the same without. Never knows: how a fault is done to tensors (`faults.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.divergence_lab.runs import (
    SECOND_FROM,
    Choices,
    Fault,
    Run,
    base_of,
    half_settings,
    sources,
)

Make = Callable[[Choices, dict[str, Any]], dict[str, Any]]
"""Given a sound base, the fields of the `Run` that differ."""
Range = tuple[float, float]
"""Lowest and highest strength of a cause."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A mechanism."""

    runs: int
    make: Make
    slow: bool
    """It grows step by step, so that there is something to see before the loss moves."""
    accepted: tuple[str, ...]
    """Kinds of findings that name it rightly."""
    says: str
    """In a table."""


ANY_HARM = ("divergence", "loss-spike", "gradient-spike", "growth", "non-finite")
_STALL = ("plateau", "slow-progress")


def caused(mechanism: str, number: int) -> Run:
    """One run of a family."""
    name = f"{mechanism}/{number:03d}"
    choose = Choices(name)
    base = base_of(number, choose)
    seed = choose.whole(1, 10**6)
    milder = MILDER_FROM <= number < SECOND_FROM
    make = MILDER[mechanism] if milder else CAUSES[mechanism].make
    return Run(name=name, mechanism=mechanism, seed=seed, **make(choose, base))


def _onset(choose: Choices, base: dict[str, Any], latest: float = 0.5) -> int:
    return choose.whole(110, max(111, int(latest * base["train.steps"])))


_PLAIN = {"model.qk_norm": False, "optim.name": "adamw", "model.norm_placement": "pre"}


def _learning_rate(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    """Far too high, without QK-norm (arXiv 2309.14322); from the start, or raised on the way."""
    base |= _PLAIN | {"optim.schedule.shape": "constant", "model.z_loss": 0.0}
    high = choose.log_between(0.04, 0.6)
    if choose.chance(0.5):
        onset = _onset(choose, base)
        return {"settings": base, "later": {"optim.lr": high}, "onset": onset}
    return {"settings": base | {"optim.lr": high}, "twin": base}


def _no_warmup(
    choose: Choices, base: dict[str, Any], adam_lr: Range = (0.03, 0.07), sgd_lr: Range = (0.4, 0.9)
) -> dict[str, Any]:
    """A rate that a warm-up would have carried, at full height from the first step."""
    adam = choose.chance(0.5)
    base |= _PLAIN | {
        "model.norm_placement": choose.pick(("post", "pre")) if adam else "pre",
        "model.layers": choose.pick((3, 4)),
        "model.embedding_norm": False,
        "optim.name": "adamw" if adam else "sgdw",
        "optim.lr": choose.log_between(*(adam_lr if adam else sgd_lr)),
        "optim.clip": choose.pick((0.0, 1.0)) if adam else 0.0,
        "optim.schedule.shape": "cosine",
        "optim.schedule.warmup_steps": 150,
    }
    return {"settings": base | {"optim.schedule.warmup_steps": 0}, "twin": base}


def _attention_logits(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    """Query and key weights grow by a share each step (YaLM's thermometers)."""
    base |= _PLAIN | {
        "model.layers": choose.pick((3, 4)),
        "model.embedding_norm": False,
        "optim.lr": choose.log_between(4e-3, 7e-3),
        "optim.clip": 0.0,
        "optim.schedule.shape": choose.pick(("constant", "wsd")),
    }
    onset = _onset(choose, base, 0.35)
    return {
        "settings": base, "onset": onset,
        "fault": Fault("attention-logits", onset, choose.log_between(0.04, 0.09), 10**6),
    }  # fmt: skip


def _output_logits(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    """All logits drift away together where the head rounds to bfloat16 (why PaLM has a z-loss)."""
    base |= {"model.tied_head": False, "model.norm_placement": "pre", "model.z_loss": 0.0,
             "optim.weight_decay": 0.0}  # fmt: skip
    onset = _onset(choose, base, 0.4)
    drift = choose.log_between(5, 20) * choose.pick((1.0, -1.0))
    return {
        "settings": base, "onset": onset, "logits_in_bf16": True,
        "fault": Fault("output-logits", onset, drift, 10**6),
    }  # fmt: skip


def _half_range(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    """What the MLPs add grows until fp16 overflows, and the loss scale sinks to its floor."""
    base |= {"model.norm_placement": "pre", **half_settings(choose)}
    onset = _onset(choose, base, 0.4)
    return {
        "settings": base, "onset": onset, "half_shift": choose.whole(5, 8),
        "fault": Fault("mlp-out", onset, choose.log_between(0.035, 0.08), 10**6),
    }  # fmt: skip


def _poisoned(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    """One batch whose gradient is not finite, or enormous where nothing clips it."""
    onset = _onset(choose, base, 0.8)
    if choose.chance(0.3):
        # Several in a row: a single one is masked by the gate, and does no harm.
        steps = choose.pick((1, 4, 8, 16))
        return {"settings": base, "onset": onset, "fault": Fault("loss-nan", onset, 1.0, steps)}
    base |= {"optim.clip": 0.0, "optim.name": "adamw",
             "optim.schedule.shape": "constant"}  # fmt: skip
    if choose.chance(0.6):
        base |= {"optim.name": "sgdw", "optim.lr": choose.log_between(0.1, 0.4)}
        strength = choose.log_between(30, 3000)
        return {"settings": base, "onset": onset,
                "fault": Fault("gradient-spike", onset, strength)}  # fmt: skip
    base |= {"optim.lr": choose.log_between(1e-2, 3e-2), "model.norm_placement": "pre"}
    return {"settings": base, "onset": onset,
            "fault": Fault("repeated-token", onset, 1.0, choose.whole(2, 5))}  # fmt: skip


def _bad_stretch(
    choose: Choices, base: dict[str, Any], share: Range = (0.5, 1.0)
) -> dict[str, Any]:
    """Batches of noise, or of one token, for a while."""
    onset = _onset(choose, base, 0.7)
    kind = choose.pick(("noise-tokens", "shuffled-tokens", "noise-tokens"))
    return {"settings": base, "onset": onset,
            "fault": Fault(kind, onset, choose.between(*share), choose.whole(8, 40))}  # fmt: skip


def _weight_decay(choose: Choices, base: dict[str, Any], decay: Range = (5, 50)) -> dict[str, Any]:
    """Decay a hundred times too strong, from the start or set on the way."""
    base |= {"optim.schedule.shape": "constant"}
    wrong = {"optim.weight_decay": choose.log_between(*decay)}
    if choose.chance(0.65):
        return {"settings": base, "later": wrong, "onset": _onset(choose, base)}
    return {"settings": base | wrong, "twin": base}


def _second_moment(
    choose: Choices, base: dict[str, Any], lr: Range = (1.2e-2, 3e-2)
) -> dict[str, Any]:
    """A second moment that forgets too slowly to see gradients grow."""
    base |= _PLAIN | {
        "model.qk_norm": True,
        "optim.lr": choose.log_between(*lr),
        "optim.schedule.shape": "constant",
        "optim.clip": choose.pick((0.0, 1.0)),
    }
    if choose.chance(0.75):
        # Old betas come back (OPT): a sum that was made for one beta is read with another, and
        # updates are many times too large for as long as that one remembers.
        slow = base | {"optim.beta2": 0.99999}
        return {"settings": slow, "later": {"optim.beta2": choose.pick((0.99, 0.995, 0.997))},
                "onset": _onset(choose, base)}  # fmt: skip
    base |= {"data.sources": sources(0.98), "model.zero_head": True, "model.tied_head": False,
             "data.stages": [{"from_draw": _onset(choose, base) * base["batch.sequences"],
                              "weights": {"made-up": 0.02, "stdlib": 0.98}}]}  # fmt: skip
    return {"settings": base | {"optim.beta2": 0.99999}, "twin": base}


def _corrupted(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    """Bits flip in the exponent of some weights of one matrix."""
    onset = _onset(choose, base, 0.8)
    return {"settings": base, "onset": onset,
            "fault": Fault("corrupted-weight", onset, choose.whole(6, 40))}  # fmt: skip


def _frozen(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    """A group that gets no gradient from the first step on, or from later."""
    kind = choose.pick(("frozen-position", "frozen-position", "frozen-embedding", "frozen-vector"))
    if kind == "frozen-position":
        base |= {"model.positions": "learned"}
    base |= {"model.tied_head": False}
    onset = 1 if choose.chance(0.7) else _onset(choose, base, 0.4)
    return {"settings": base, "onset": onset, "fault": Fault(kind, onset, 1.0, 10**6)}


def _escape(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    """Backslashes run through one source, ever more of them."""
    base |= {"data.sources": sources(choose.between(0.2, 0.6))}
    onset = _onset(choose, base, 0.5) if choose.chance(0.8) else 1
    return {"settings": base, "onset": onset,
            "fault": Fault("escape-leak", onset, choose.between(0.5, 0.95), 10**6)}  # fmt: skip


def _too_low(choose: Choices, base: dict[str, Any], lr: Range = (1e-7, 2e-5)) -> dict[str, Any]:
    """A rate at which nothing is learned."""
    base |= {"train.steps": choose.whole(560, 680)}  # long enough to be sure of it
    low = choose.log_between(*lr)
    if choose.chance(0.6):
        return {"settings": base | {"optim.lr": low}, "twin": base}
    return {"settings": base, "later": {"optim.lr": low}, "onset": choose.whole(50, 90)}


CAUSES: dict[str, Cause] = {
    "lr-too-high": Cause(18, _learning_rate, False, (*ANY_HARM, *_STALL),
                         "learning rate too high, without QK-norm"),
    "no-warmup": Cause(20, _no_warmup, False, (*ANY_HARM, *_STALL), "no warm-up"),
    "attention-logits": Cause(18, _attention_logits, True, ANY_HARM, "attention logits grow"),
    "output-logits": Cause(16, _output_logits, True, ANY_HARM, "output logits drift"),
    "float16-range": Cause(16, _half_range, True, (*ANY_HARM, "loss-scale-collapse"),
                           "float16 range (emulated)"),
    "poisoned-batch": Cause(18, _poisoned, False, (*ANY_HARM, *_STALL), "a poisoned batch"),
    "bad-stretch": Cause(16, _bad_stretch, False, ANY_HARM, "a bad stretch of data"),
    "weight-decay": Cause(16, _weight_decay, False, (*ANY_HARM, *_STALL), "wrong weight decay"),
    "second-moment": Cause(18, _second_moment, False, (*ANY_HARM, *_STALL), "β₂ too high"),
    "corrupted-weight": Cause(16, _corrupted, False, ANY_HARM, "a corrupted weight"),
    "frozen-group": Cause(14, _frozen, False, ("frozen-group",), "frozen positions or group"),
    "escape-leak": Cause(16, _escape, False, ("too-good",), "escape characters leak in"),
    "lr-too-low": Cause(12, _too_low, False, (*_STALL, "frozen-group"), "learning rate too low"),
}  # fmt: skip

MILDER_FROM = 300
"""Runs numbered from here on, up to the second held-out set, are milder: at the border of harm,
where a judge errs."""
MILDER: dict[str, Make] = {
    "no-warmup": partial(_no_warmup, adam_lr=(0.015, 0.04), sgd_lr=(0.2, 0.5)),
    "bad-stretch": partial(_bad_stretch, share=(0.25, 0.6)),
    "weight-decay": partial(_weight_decay, decay=(1.5, 6)),
    "second-moment": partial(_second_moment, lr=(6e-3, 1.6e-2)),
    "lr-too-low": partial(_too_low, lr=(1e-5, 8e-5)),
}

MORE_RUNS: dict[str, tuple[range, ...]] = {
    "bad-stretch": (range(200, 226), range(228, 240, 6), range(300, 316)),
    "weight-decay": (range(200, 225), range(301, 325, 3)),
    "second-moment": (range(200, 225), range(228, 240, 6), range(300, 314)),
    "lr-too-low": (range(200, 212), range(214, 225), range(228, 240, 6), range(301, 316, 3)),
    "no-warmup": (range(200, 224), range(224, 300, 2), range(301, 313, 3)),
}
"""Numbers of runs added for tuning, by mechanism. Even ones come from the same settings as those
of the first split; without a warm-up these differ from varied ones most, so more of them were made.
"""
