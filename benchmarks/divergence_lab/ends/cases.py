"""The cases: recipe, seed, fault and moment, declared and seeded; nothing is run here.

Enters: nothing. Leaves: `Case`s, the same on every machine. Never knows: what becomes of a run.

Two parts. `tuning` may be looked at while the policy changes. `held-out` has other text and other
shapes, was fixed by a hash in the tests before any of its runs was made, and is looked at once for
each version of the policy that is published.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from benchmarks.divergence_lab.causes import CAUSES
from benchmarks.divergence_lab.other import of_other_text
from benchmarks.divergence_lab.runs import (
    BASE,
    HARMLESS,
    SECOND_FROM,
    Choices,
    Fault,
    Run,
    Settings,
    base_settings,
    disturbed_by,
    other_shape,
)

Part = Literal["tuning", "held-out"]
PARTS: tuple[Part, ...] = ("tuning", "held-out")
HELD_OUT_FROM = SECOND_FROM
"""Numbers of held-out cases begin here."""
HEALTHY_STEPS = 2_200
SNAPSHOT_STEPS = 20
_SPIKING_FROM = 4
_GENERATION = 1
"""Raised when cases of the same name come to mean something else."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a person does to a run, by the command that people have for it."""

    how: Literal["set", "fork", "restart"]
    """`longhaul set`; `longhaul fork --set`; stopped and started again with `--set`."""
    settings: Settings
    at: int
    """Steps made when he does it."""
    back: int = 0
    """Of a fork: so many steps before."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run, and what goes wrong with it."""

    run: Run
    """Its name is `way/number`; `later` is empty, as it is a person's change here."""
    change: Change | None = None
    cured_below: float = 0.0
    """Share of the recipe's learning rate below which a lasting fault does nothing: what grows by
    the rate stops growing when the rate is low enough. 0: nothing stops it."""

    @property
    def way(self) -> str:
        """How it is meant to go wrong; `healthy` if it is not."""
        return self.run.mechanism

    @property
    def part(self) -> Part:
        """Which part it belongs to."""
        return "held-out" if int(self.run.name.split("/")[1]) >= HELD_OUT_FROM else "tuning"

    @property
    def onset(self) -> int:
        """First step that something wrong may touch."""
        if self.change is None:
            return self.run.onset
        # A fork begins at the newest state that is not later.
        earlier = self.change.back + SNAPSHOT_STEPS if self.change.how == "fork" else 0
        return max(self.change.at - earlier, 0) + 1

    def undisturbed(self) -> "Case":
        """The same run without anything wrong."""
        return Case(self.run.undisturbed())

    def key(self) -> str:
        """Hash over everything that decides what happens to the run."""
        body = asdict(replace(self, run=replace(self.run, twin=None, name="", mechanism="")))
        text = json.dumps([_GENERATION, BASE.read_text(), body], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


Make = Callable[[Choices, dict[str, Any]], dict[str, Any]]
"""Given a sound base, the fields of the `Case`'s run that differ, and `change`, `cured_below`."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to go wrong."""

    tuning: int | tuple[int, ...]
    """How many cases, or the numbers of chosen ones."""
    held_out: int
    make: Make
    says: str
    """In a table."""
    group: Literal["people", "rates", "outside", "text"]


def _moment(choose: Choices, base: dict[str, Any]) -> int:
    steps = base["train.steps"]
    return choose.whole(int(0.25 * steps), int(0.65 * steps))


def _set_rate(*factors: float) -> Make:
    def make(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
        rate = float(f"{base['optim.lr'] * choose.pick(factors):.3g}")
        return {
            "settings": base,
            "change": Change("set", {"optim.lr": rate}, _moment(choose, base)),
        }

    return make


def _set_decay(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    change = {"optim.weight_decay": choose.log_between(5, 50)}
    return {"settings": base, "change": Change("set", change, _moment(choose, base))}


def _set_betas(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    path, value = choose.pick(
        (("beta1", 0.999), ("beta1", 0.99), ("beta2", 0.2), ("beta2", 0.9999))
    )
    base |= {"optim.name": "adamw"}
    return {"settings": base, "change": Change("set", {f"optim.{path}": value},
                                               _moment(choose, base))}  # fmt: skip


def _set_clip(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    return {"settings": base, "change": Change("set", {"optim.clip": 0.0}, _moment(choose, base))}


def _bad_setting(choose: Choices, base: dict[str, Any]) -> Settings:
    if choose.chance(0.7):
        return {"optim.lr": float(f"{base['optim.lr'] * choose.pick((30, 100, 300)):.3g}")}
    return {"optim.weight_decay": choose.log_between(10, 50)}


def _restart(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    change = _bad_setting(choose, base)
    return {"settings": base, "change": Change("restart", change, _moment(choose, base))}


def _fork(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    change, back = _bad_setting(choose, base), choose.whole(0, 60)
    return {"settings": base, "change": Change("fork", change, _moment(choose, base), back)}


def _rate_from_start(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
    rate = base["optim.lr"] * choose.pick((10, 30, 100, 300))
    return {"settings": base | {"optim.lr": float(f"{rate:.3g}")}, "twin": dict(base)}


_KINDS = ("other-script", "other-script", "shuffled-tokens", "noise-tokens", "repeated-token")


def _text_changes(least: float, most: float, kinds: tuple[str, ...] = _KINDS) -> Make:
    """From some step on a share of the text is of another kind, and stays so."""

    def make(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
        kind, share = choose.pick(kinds), choose.between(least, most)
        onset = _moment(choose, base)
        return {"settings": base, "onset": onset, "fault": Fault(kind, onset, share, 10**6)}

    return make


def _now_and_then(kind: str, *strengths: float) -> Make:
    """One step in eight is touched, as where a few documents of a source are odd."""

    def make(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
        onset, steps = _moment(choose, base), choose.whole(60, 160)
        strength = choose.log_between(*strengths)
        if kind != "gradient-noise":
            return {"settings": base, "onset": onset, "fault": Fault(kind, onset, strength, steps)}
        # A rate that is too high brings it about.
        return {"settings": base, "onset": onset, "fault": Fault(kind, onset, strength, 10**6),
                "cured_below": choose.log_between(0.15, 0.7)}  # fmt: skip

    return make


def _of_lab(mechanism: str) -> Make:
    """A mechanism of the lab; what it sets later, a person sets."""

    def make(choose: Choices, base: dict[str, Any]) -> dict[str, Any]:
        fields = CAUSES[mechanism].make(choose, base)
        if later := fields.pop("later", None):
            fields["change"] = Change("set", later, fields.pop("onset") - 1)
        fault: Fault | None = fields.get("fault")
        if fault is not None and CAUSES[mechanism].slow:
            # In the lab nothing stops it, so that detectors see it grow. What grows in a real run
            # is driven by the rate, or there would be nothing a policy could do.
            fields["cured_below"] = choose.log_between(0.15, 0.7)
        return fields

    return make


_STAND_OUT = 6, 12, 21, 23, 32, 36
"""Numbers, of twelve that were tried, in which an alarm led to an action."""
_repeats = _text_changes(0.1, 0.3, ("repeated-token", "repeated-token", "repeated-phrase"))

WAYS: dict[str, Way] = {
    "set-lr-x10": Way(3, 2, _set_rate(10), "set: rate × 10", "people"),
    "set-lr-x100": Way(4, 1, _set_rate(100), "set: rate × 100", "people"),
    "set-lr-x1000": Way(4, 2, _set_rate(1000), "set: rate × 1,000", "people"),
    "set-lr-x0.01": Way(2, 1, _set_rate(0.01), "set: rate × 0.01", "people"),
    "set-decay": Way(3, 2, _set_decay, "set: weight decay 5 to 50", "people"),
    "set-betas": Way(4, 1, _set_betas, "set: a beta", "people"),
    "set-clip-off": Way(2, 1, _set_clip, "set: clipping off", "people"),
    "restart": Way(4, 1, _restart, "restart with --set: rate or decay", "people"),
    "fork": Way(4, 1, _fork, "fork with --set: rate or decay", "people"),
    "lr-from-start": Way(5, 3, _rate_from_start, "rate × 10 to 300 from the start", "rates"),
    "lr-too-high": Way(2, 1, _of_lab("lr-too-high"), "rate too high, no QK-norm", "rates"),
    "no-warmup": Way(2, 2, _of_lab("no-warmup"), "no warm-up", "rates"),
    "lr-too-low": Way(1, 1, _of_lab("lr-too-low"), "rate too low", "rates"),
    "weight-decay": Way(1, 1, _of_lab("weight-decay"), "wrong weight decay", "rates"),
    "second-moment": Way(2, 2, _of_lab("second-moment"), "β₂ too high", "rates"),
    "attention-logits": Way(2, 1, _of_lab("attention-logits"), "attention logits grow", "outside"),
    "output-logits": Way(0, 1, _of_lab("output-logits"), "output logits drift", "outside"),
    "float16-range": Way(2, 1, _of_lab("float16-range"), "float16 range (emulated)", "outside"),
    "poisoned-batch": Way(2, 1, _of_lab("poisoned-batch"), "a poisoned batch", "outside"),
    "bad-stretch": Way(2, 3, _of_lab("bad-stretch"), "a bad stretch of data", "outside"),
    "corrupted-weight": Way(2, 1, _of_lab("corrupted-weight"), "a corrupted weight", "outside"),
    "frozen-group": Way(1, 1, _of_lab("frozen-group"), "frozen positions or group", "outside"),
    "escape-leak": Way(4, 4, _of_lab("escape-leak"), "escape characters leak in", "outside"),
    "gradient-spikes": Way(
        4, 3, _now_and_then("gradient-spikes", 7, 24), "gradient spikes", "outside"
    ),
    "odd-batches": Way(4, 4, _now_and_then("odd-batches", 0.2, 1.0), "odd batches", "outside"),
    "gradient-noise": Way(
        4, 3, _now_and_then("gradient-noise", 7, 24), "gradients of noise", "outside"
    ),
    "text-changes": Way(8, 10, _text_changes(0.25, 0.95), "the text changes for good", "text"),
    "some-changes": Way(6, 13, _text_changes(0.15, 0.45), "some of it changes for good", "text"),
    "some-repeats": Way(_STAND_OUT, 4, _repeats, "some of it repeats itself for good", "text"),
}
HEALTHY_CASES = {"tuning": 6, "held-out": 6}


def case(way: str, number: int) -> Case:
    """One case of a way to go wrong."""
    name = f"{way}/{number:03d}"
    if name == "set-lr-x1000/000":
        return _must_show(name)
    choose = Choices(f"ends/{name}")
    base, held_out = _base(choose, number), number >= HELD_OUT_FROM
    base["train.steps"] = choose.whole(360, 480) if held_out else choose.whole(440, 640)
    seed = choose.whole(1, 10**6)
    fields = WAYS[way].make(choose, base)
    change, cured = fields.pop("change", None), fields.pop("cured_below", 0.0)
    run = Run(name=name, mechanism=way, seed=seed, **fields)
    return Case(of_other_text(run) if held_out else run, change, cured)


def _must_show(name: str) -> Case:
    """`longhaul set RUN optim.lr=3 --force` at step 300 of 700, as the base recipe is."""
    run = Run(name, "set-lr-x1000", 1, {"train.steps": 700})
    return Case(run, Change("set", {"optim.lr": 3.0}, 300))


def healthy(number: int) -> Case:
    """A long sound run with harmless disturbances; those added later have many spikes as well."""
    name = f"healthy/{number:03d}"
    choose = Choices(f"ends/{name}")
    settings = _base(choose, number) | {"train.steps": HEALTHY_STEPS}
    first = (*HARMLESS, None)[number % (len(HARMLESS) + 1)]
    harmless = () if first is None else (first,)
    spike = None
    if first is not None:
        settings |= disturbed_by(first, settings, choose)
    if first == "H3":
        onset = choose.whole(80, HEALTHY_STEPS - 40)
        spike = Fault("gradient-spike", onset, choose.log_between(15, 300))
    if number % HELD_OUT_FROM >= _SPIKING_FROM:
        onset = choose.whole(80, HEALTHY_STEPS - 400)
        spike = Fault("gradient-spikes", onset, choose.log_between(7, 24), 300)
    run = Run(name, "healthy", choose.whole(1, 10**6), settings, harmless=harmless, spike=spike)
    return Case(of_other_text(run) if number >= HELD_OUT_FROM else run)


def _base(choose: Choices, number: int) -> dict[str, Any]:
    settings = base_settings(choose)
    return other_shape(settings, choose) if number >= HELD_OUT_FROM else settings


def catalogue(part: Part, quick: bool = False) -> Iterator[Case]:
    """Every case of a part; healthy ones last.

    Args:
        part: which.
        quick: one of each way.
    """
    first = HELD_OUT_FROM if part == "held-out" else 0
    for name, way in WAYS.items():
        chosen = way.held_out if part == "held-out" else way.tuning
        numbers = range(chosen) if isinstance(chosen, int) else chosen
        for number in numbers[:1] if quick else numbers:
            yield case(name, first + number)
    for number in range(1 if quick else HEALTHY_CASES[part]):
        yield healthy(first + number)
