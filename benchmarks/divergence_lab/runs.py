"""The catalogue: every run of the lab, declared and seeded; nothing is run here.

Enters: nothing. Leaves: `Run`s, the same on every machine. Never knows: tensors, records, or what
becomes of a run (`truth.py`); a name says only what was meant.

Base configurations vary in depth, width, positions, norms, activation, optimizer, learning rate,
schedule and batch, so that no limit can be learned by heart from one shape.
"""

import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from longhaul.core.schedules import derive_key

BASE = Path(__file__).with_name("base.toml")
GENERATION = 1
"""Raised when runs of the same name come to mean something else."""
HEALTHY_RUNS = 150
MORE_FROM = 200
"""Runs numbered from here on were added for tuning after the split was fixed."""
MORE_HEALTHY_RUNS = 32
SECOND_FROM = 500
"""Runs numbered from here on are the second held-out set: of other shapes and, once `other.py` has
been over them, of other text."""
HARMLESS = ("H1", "H2", "H3", "H4", "H5", "H6", "H7")
"""Disturbances that must trigger nothing: change of mixture, curriculum, a gradient spike that
clipping absorbs, fast decay of the learning rate, noise of a small batch, cold first steps, slow
steps because of evaluation and save."""

T = TypeVar("T")
Settings = Mapping[str, Any]
"""Dotted setting → value, on top of `base.toml`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something done to a run from a step on; what it does is in `faults.py`."""

    kind: str
    onset: int
    """First step (counted from 1) that it touches."""
    strength: float = 1.0
    steps: int = 1
    """How many steps it lasts."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the lab."""

    name: str
    """`mechanism/number`."""
    mechanism: str
    """How it is meant to go wrong; `healthy` if it is not."""
    seed: int
    settings: Settings
    twin: Settings | None = None
    """Settings of the undisturbed twin, where they differ from the run's own."""
    later: Settings = field(default_factory=dict)
    """Settings that come into force at `onset`."""
    onset: int = 1
    """First step that the cause touches."""
    fault: Fault | None = None
    harmless: tuple[str, ...] = ()
    """Of `HARMLESS`."""
    spike: Fault | None = None
    """H3's gradient spike; the twin has it too."""
    half_shift: int | None = None
    """Activations and gradients are rounded to fp16 after a shift by so many powers of two (a
    small model's numbers never come near fp16's range by themselves); None: not at all."""
    logits_in_bf16: bool = False
    """Output logits are rounded to bfloat16, as where a head computes in it."""

    @property
    def meant_to_fail(self) -> bool:
        """It has a cause."""
        return self.mechanism != "healthy"

    def undisturbed(self) -> "Run":
        """The twin: the same seed, data and harmless disturbances, without the cause."""
        return replace(
            self,
            # Nobody reads its gauges.
            settings={**(self.settings if self.twin is None else self.twin),
                      "monitor.gauge_interval_steps": 0},
            twin=None, later={}, onset=1, fault=None,
        )  # fmt: skip

    def key(self) -> str:
        """Hash over everything that decides the run's records."""
        body = asdict(replace(self, twin=None, name="", mechanism="", onset=1))
        text = json.dumps([GENERATION, BASE.read_text(), body], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


class Choices:
    """Choices that follow from a name, the same for every version of Python.

    Args:
        name: of the run.
    """

    def __init__(self, name: str) -> None:
        # Only Random.random() is promised to give the same numbers in every Python version.
        self._uniform = random.Random(derive_key(0, "divergence-lab", name)).random

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._uniform() < probability

    def pick(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[int(self._uniform() * len(options))]

    def between(self, low: float, high: float) -> float:
        """Evenly; three digits."""
        return float(f"{low + self._uniform() * (high - low):.3g}")

    def log_between(self, low: float, high: float) -> float:
        """Evenly in the logarithm; three digits."""
        return float(f"{math.exp(self.between(math.log(low), math.log(high))):.3g}")

    def whole(self, low: int, high: int) -> int:
        """A whole number, low ≤ n ≤ high."""
        return low + int(self._uniform() * (high - low + 1))


_SHAPES = (
    # layers, width, heads, context, sequences: 3 to 6 ms a step on one core.
    (2, 32, 2, 32, 8),
    (2, 32, 4, 32, 8),
    (2, 48, 2, 32, 8),
    (3, 32, 2, 32, 8),
    (4, 32, 2, 32, 8),
    (2, 64, 4, 32, 8),
    (2, 32, 2, 64, 8),
    (3, 48, 4, 32, 4),
)


_OTHER_SHAPES = (
    # The same; no shape and no width is among those above.
    (2, 40, 2, 40, 8),
    (3, 40, 4, 24, 10),
    (5, 24, 2, 32, 8),
    (2, 56, 4, 28, 8),
    (1, 72, 4, 48, 6),
    (4, 40, 2, 20, 10),
)


def base_settings(choose: Choices) -> dict[str, Any]:
    """A sound configuration."""
    layers, width, heads, context, sequences = choose.pick(_SHAPES)
    post = choose.chance(0.15)
    muon = not post and choose.chance(0.2)
    settings: dict[str, Any] = {
        "model.layers": layers,
        "model.width": width,
        "model.heads": heads,
        "model.context": context,
        "model.positions": choose.pick(("rotary", "rotary", "learned")),
        "model.norm": choose.pick(("rmsnorm", "layernorm")),
        "model.norm_placement": "post" if post else "pre",
        "model.bias": choose.chance(0.4),
        "model.qk_norm": choose.chance(0.6),
        "model.tied_head": choose.chance(0.3),
        "model.embedding_norm": choose.chance(0.3),
        "model.activation": choose.pick(("gelu", "relu", "relu2", "geglu", "swiglu")),
        "model.z_loss": choose.pick((0.0, 0.0, 1e-4)),
        "batch.sequences": sequences,
        "optim.name": "muon" if muon else "adamw",
        "optim.lr": choose.log_between(8e-4, 2e-3) if post else choose.log_between(1.5e-3, 5e-3),
        "optim.beta2": choose.pick((0.95, 0.95, 0.98, 0.99)),
        "optim.weight_decay": choose.pick((0.0, 0.1, 0.1)),
        "optim.clip": choose.pick((1.0, 1.0, 0.5)),
        "optim.schedule.shape": choose.pick(("cosine", "wsd", "linear", "constant")),
        "optim.schedule.warmup_steps": choose.whole(20, 50),
        "train.steps": choose.whole(290, 370),
        "data.sources": sources(choose.between(0.3, 0.8)),
    }
    if muon:
        settings["optim.muon.scale"] = "rms"  # AdamW's learning rates serve
    return settings


def base_of(number: int, choose: Choices) -> dict[str, Any]:
    """A sound configuration for the run of this number."""
    if number >= SECOND_FROM:
        return other_shape(base_settings(choose), choose)
    varied = number >= MORE_FROM and number % 2 == 1
    return varied_settings(choose) if varied else base_settings(choose)


def other_shape(settings: Settings, choose: Choices) -> dict[str, Any]:
    """The same settings in a shape that was used by nothing before."""
    layers, width, heads, context, sequences = choose.pick(_OTHER_SHAPES)
    return {**settings, "model.layers": layers, "model.width": width, "model.heads": heads,
            "model.context": context, "batch.sequences": sequences}  # fmt: skip


def varied_settings(choose: Choices) -> dict[str, Any]:
    """A sound configuration, of a wider range."""
    settings = base_settings(choose)
    settings |= {
        "batch.sequences": choose.pick((4, 8, 12)),
        "optim.lr": float(f"{settings['optim.lr'] * choose.log_between(0.6, 1.3):.3g}"),
        "optim.clip": choose.pick((0.3, 1.0, 2.0)),
        "optim.schedule.warmup_steps": choose.whole(15, 70),
        "train.steps": choose.whole(260, 420),
        "data.sources": sources(choose.between(0.15, 0.9)),
    }
    return settings


def sources(made_up: float) -> list[dict[str, Any]]:
    """Easy text and hard text, the first with this share."""
    return [
        {"name": "made-up", "path": "synthetic", "weight": made_up},
        {"name": "stdlib", "path": "python-stdlib", "weight": round(1 - made_up, 6)},
    ]


def half_settings(choose: Choices) -> dict[str, Any]:
    """A dynamic loss scale whose growth overflows now and then, as it is meant to."""
    return {
        "optim.loss_scale.initial": choose.pick((65536.0, 4096.0)),
        "optim.loss_scale.growth_interval": choose.pick((60, 100)),
        "optim.loss_scale.floor": 1.0,
    }


def healthy(number: int) -> Run:
    """A sound run with up to three harmless disturbances."""
    name = f"healthy/{number:03d}"
    choose = Choices(name)
    settings = base_of(number, choose)
    first = HARMLESS[number % len(HARMLESS)]
    others = tuple(h for h in HARMLESS if h != first and choose.chance(0.2))
    harmless = () if number % 12 == 11 else tuple(sorted((first, *others)))
    spike = None
    half = choose.chance(0.12)
    for disturbance in harmless:
        if disturbance == "H3":
            onset = choose.whole(80, settings["train.steps"] - 40)
            spike = Fault("gradient-spike", onset, choose.log_between(15, 300))
        settings |= disturbed_by(disturbance, settings, choose)
    if half:
        settings |= half_settings(choose)
    return Run(
        name, "healthy", choose.whole(1, 10**6), settings, harmless=harmless, spike=spike,
        half_shift=choose.whole(4, 6) if half else None,
    )  # fmt: skip


def disturbed_by(disturbance: str, settings: Settings, choose: Choices) -> dict[str, Any]:
    """Settings that bring a harmless disturbance about, as far as settings can."""
    steps, context = settings["train.steps"], settings["model.context"]
    step_boundary = choose.whole(steps // 3, 2 * steps // 3)
    match disturbance:
        case "H1":
            weight = settings["data.sources"][0]["weight"]
            first = choose.between(0.02, 0.15) if weight > 0.5 else choose.between(0.85, 0.97)
            weights = {"made-up": first, "stdlib": 1 - first}
            return {"data.stages": [
                {"from_draw": step_boundary * settings["batch.sequences"], "weights": weights}
            ]}  # fmt: skip
        case "H2" if choose.chance(0.5):
            return {"batch.sequence_length": context // 2,
                    "batch.sequences": 2 * settings["batch.sequences"],
                    "batch.stages": [{"from_step": step_boundary, "sequence_length": context,
                                      "sequences": settings["batch.sequences"]}]}  # fmt: skip
        case "H2":
            return {"batch.sequences": settings["batch.sequences"] // 2,
                    "batch.stages": [{"from_step": step_boundary, "sequence_length": context,
                                      "sequences": settings["batch.sequences"] * 2}]}  # fmt: skip
        case "H4":
            return {"optim.schedule.shape": "wsd", "optim.schedule.final_fraction": 0.0,
                    "optim.schedule.cooldown_fraction": choose.between(0.12, 0.4)}  # fmt: skip
        case "H5":
            return {"batch.sequences": choose.pick((2, 4)), "batch.stages": [],
                    "batch.sequence_length": context, "data.stages": []}  # fmt: skip
        case "H7":
            return {"evaluation.interval_steps": choose.whole(25, 60),
                    "checkpoint.interval_steps": choose.whole(30, 80)}  # fmt: skip
        case _:
            return {}


def catalogue() -> Iterator[Run]:
    """Every run, healthy ones first; those added for tuning come last."""
    # Imported late: causes.py builds on what stands here.
    from benchmarks.divergence_lab.causes import CAUSES, MORE_RUNS, caused

    for number in range(HEALTHY_RUNS):
        yield healthy(number)
    for mechanism, cause in CAUSES.items():
        for number in range(cause.runs):
            yield caused(mechanism, number)
    for number in range(MORE_FROM, MORE_FROM + MORE_HEALTHY_RUNS):
        yield healthy(number)
    for mechanism, runs in MORE_RUNS.items():
        for number in chain.from_iterable(runs):
            yield caused(mechanism, number)
