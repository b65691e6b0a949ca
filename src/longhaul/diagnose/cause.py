"""What made a step go wrong: the verdict on a ladder of replays.

The same captured (state, batch, generators) is computed again, each time with one thing changed.
The first rung that changes the answer names the cause. A machine is only accused with another
device as witness: alone, it cannot be told from the software that runs on it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from longhaul.diagnose.signs import HALF_WAY, Figures, Series, Symptom, working_rate

Cause = Literal[
    "machine", "parallel or kernel bug", "software", "data", "hyper-parameter", "undetermined"
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

_NOISES_APART = 8.0
"""Record and replay differ if they are further apart than so many times two replays are."""
_LEAP = 100.0
"""A distance between replays that grows by more from a step to the next did not grow: it fell in.
"""
_GROSS = 10.0
"""A difference of so many times the rounding is a fault of its own, whatever the symptom."""
_AFTER_UPDATE = 4.0
"""Rounding of the step after an update, in units of that before it."""
_MOSTLY = 0.75
"""Share of other batches that must be free of the symptom before the data is blamed."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """Largest relative differences that two correct computations of one step may show."""

    loss: float
    gradient_norm: float


FLOAT32 = Rounding(loss=1e-4, gradient_norm=2e-3)
"""Between devices, or between fused and plain kernels."""
HALF = Rounding(loss=5e-3, gradient_norm=5e-2)
"""Where a side computes in bfloat16 or float16."""
SAME_BITS = Rounding(loss=1e-6, gradient_norm=1e-6)
"""Between replays with the same software on the same kind of machine."""


@dataclass(frozen=True)
class Ladder:
    """The figures of every rung climbed so far; None or empty where one was not."""

    recorded: Series
    """From the journal, of the steps from the checkpoint on."""
    replays: tuple[Series, ...]
    """The same, at least twice: same rank, same everything."""
    here: tuple[Series, ...] = ()
    """Of single states (one series each, of a step and the one after it): as trained."""
    here_again: tuple[Series, ...] = ()
    """Once more."""
    witness: tuple[Series, ...] | None = None
    """The same on another device."""
    witness_again: tuple[Series, ...] | None = None
    """The witness once more: one that contradicts itself is none."""
    beside_plain: tuple[Series, ...] = ()
    """As trained, but without dropout: its draws differ between kernels."""
    plain: tuple[Series, ...] | None = None
    """The same here, in eager float32, unsharded."""
    previous: tuple[Series, ...] | None = None
    """The same here, under the software before."""
    as_trained: Series = ()
    """The stretch that rungs 5 and 6 vary, as trained."""
    other_data: tuple[Series, ...] = ()
    """The stretch on other batches, one series for each choice."""
    lower_rates: tuple[tuple[float, Series], ...] = ()
    """The stretch with the learning rate times a factor, falling; the first is half."""
    rounding: Rounding = FLOAT32
    """Between two devices, kernels, or versions of the software."""
    same_software: bool = True
    """The record was made by the software and kind of machine that replays it."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Rung → why it could not be climbed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cause, the rung that named it, and why."""

    cause: Cause
    rung: str
    """`replay`, `witness`, `plain`, `software`, `rest`, `data`, `rate`; empty if none did."""
    sentence: str
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """A rung named it; no further one need be climbed."""
        return self.cause != "undetermined"

    @property
    def lasting(self) -> bool:
        """The data has changed for good: there is no other to go on with."""
        return self.cause == "data" and bool(self.evidence.get("lasting"))


def apart(a: Figures, b: Figures, rounding: Rounding) -> float:
    """How far apart two computations are, in roundings: 0 if neither is finite, infinity if one."""
    if a.finite != b.finite:
        return math.inf
    if not a.finite:
        return 0.0
    found = [
        _relative(a.loss, b.loss) / rounding.loss,
        _relative(a.gradient_norm, b.gradient_norm) / rounding.gradient_norm,
    ]
    for name in a.gauges.keys() & b.gauges.keys():
        ours, theirs = a.gauges[name], b.gauges[name]
        size = max((abs(x) for x in (*ours, *theirs) if math.isfinite(x)), default=0.0)
        gaps = [abs(x - y) for x, y in zip(ours, theirs, strict=False) if math.isfinite(x - y)]
        # Readings near zero are measured by the largest layer's; a maximum is one element's.
        found.append(max(gaps, default=0.0) / (size or 1.0) / (4 * rounding.gradient_norm))
    return max(found)


def decide(symptom: Symptom, ladder: Ladder) -> Verdict:
    """The verdict on the rungs climbed so far; undetermined if none has changed the answer."""
    noise = max((noise for _, noise in _noise(ladder)), default=0.0)
    evidence = {"noise_of_replay": noise * SAME_BITS.loss}
    unsteady, differs = _unsteady_at(ladder), first_difference(ladder)
    if unsteady is not None:
        verdict = _judged_unsteady(ladder, unsteady)
    elif differs is not None:
        verdict = _not_reproduced(ladder, differs)
    else:
        judges = (_by_witness, _by_plain, _by_software, _by_data, _by_rate)
        named = [named for judge in judges if (named := judge(symptom, ladder)) is not None]
        nothing = Verdict("undetermined", "", _nothing_found(symptom, ladder))
        verdict = named[0] if named else nothing
    return replace(verdict, evidence={**evidence, **verdict.evidence})


def first_difference(ladder: Ladder) -> int | None:
    """The first step that this machine computes otherwise than was recorded, beyond the noise."""
    floor = SAME_BITS if ladder.same_software else ladder.rounding
    noise = dict(_noise(ladder))
    for ours, record in zip(ladder.replays[0], ladder.recorded, strict=False):
        allowed = max(1.0, _NOISES_APART * noise.get(ours.step, 0.0) * SAME_BITS.loss / floor.loss)
        if apart(ours, record, floor) > allowed:
            return record.step
    return None


def reproduced(ladder: Ladder) -> bool:
    """Replays agree with the record, and with one another."""
    return _unsteady_at(ladder) is None and first_difference(ladder) is None


def _noise(ladder: Ladder) -> list[tuple[int, float]]:
    """Of each step the largest distance between replays up to it: a difference feeds on itself."""
    found, so_far = [], 0.0
    for place, ours in enumerate(ladder.replays[0]):
        others = [run[place] for run in ladder.replays[1:] if place < len(run)]
        so_far = max([so_far, *(apart(ours, other, SAME_BITS) for other in others)])
        found.append((ours.step, so_far))
    return found


def _unsteady_at(ladder: Ladder) -> int | None:
    """A step that does not come out alike twice; not one whose rounding has grown on the way."""
    for first, again in zip(ladder.here, ladder.here_again, strict=False):
        if _furthest((first,), (again,), ladder.rounding) > 1.0:
            return first[0].step
    before = 0.0
    for step, noise in _noise(ladder):
        if noise * SAME_BITS.loss > ladder.rounding.loss and noise > _LEAP * max(before, 1.0):
            return step
        before = noise
    return None


def _judged_unsteady(ladder: Ladder, step: int) -> Verdict:
    """Two replays of the same on the same machine differ by more than rounding."""
    said = f"replays of step {step} on this machine differ from one another"
    if ladder.witness is None or ladder.witness_again is None:
        return Verdict("undetermined", "", f"{said}; {_why_skipped(ladder, 'witness')}")
    if _furthest(ladder.witness, ladder.witness_again, ladder.rounding) <= 1.0:
        return Verdict("machine", "replay", f"{said}, and those on the witness do not")
    races = f"{said}, and so do those on the witness: something races"
    return Verdict("parallel or kernel bug", "replay", races)


def _not_reproduced(ladder: Ladder, step: int) -> Verdict:
    """The record differs from what this machine computes now."""
    said = f"this machine does not compute what was recorded for step {step}"
    record = next(figures for figures in ladder.recorded if figures.step == step)
    began = ladder.recorded[0].step
    if ladder.previous is not None and _agrees(record, ladder.previous, ladder.rounding):
        reason = f"{said}; under the software before it does"
        return Verdict("software", "replay", reason)
    if ladder.witness is not None:
        ours = _agrees(record, ladder.here, ladder.rounding)
        if _agrees(record, ladder.witness, ladder.rounding) and not ours:
            reason = f"{said}, and the witness does: this machine computes wrong numbers"
            return Verdict("machine", "witness", reason)
        alike = _furthest(ladder.here, ladder.witness, ladder.rounding) <= 1.0
        # Had not even the first step agreed, the state or the software might not be the run's.
        if alike and ladder.same_software and step > began:
            reason = (
                f"{said}, nor does the witness, and both agree: the machine that made the step "
                "computed wrong numbers then"
            )
            return Verdict("machine", "witness", reason)
    why = "" if ladder.same_software else "; software or machine are not those of the record"
    missing = "".join(f"; {_why_skipped(ladder, rung)}" for rung in ("witness", "software"))
    return Verdict("undetermined", "", f"{said}{why}{missing}")


def _by_witness(symptom: Symptom, ladder: Ladder) -> Verdict | None:
    again = ladder.witness_again
    if ladder.witness is None or again is None:
        return None
    if _furthest(ladder.witness, again, ladder.rounding) > 1.0:
        return None  # it contradicts itself
    here, there = (
        any(symptom.shown_by(series[:1]) for series in frames)
        for frames in (ladder.here, ladder.witness)
    )
    why = "another device computes step {} differently from the same state, batch and "
    why += "generators, twice alike: one of the two is faulty"
    why += ", and only this one shows the symptom" * (here and not there)
    found = _changes(symptom, ladder.here, ladder.witness, ladder.rounding)
    return _differs("machine", "witness", why, found)


def _by_plain(symptom: Symptom, ladder: Ladder) -> Verdict | None:
    # Some updates (β₂ near 0) turn rounding into signs: the step after counts for what it explains.
    found = _changes(symptom, ladder.beside_plain, ladder.plain, ladder.rounding, math.inf)
    why = "eager float32, unsharded, computes step {} differently from the same state and batch, "
    why += "by more than rounding explains"
    return _differs("parallel or kernel bug", "plain", why, found)


def _by_software(symptom: Symptom, ladder: Ladder) -> Verdict | None:
    found = _changes(symptom, ladder.here, ladder.previous, ladder.rounding)
    why = "the software before computes step {} differently from the same state and batch"
    return _differs("software", "software", why, found)


def _differs(cause: Cause, rung: str, why: str, found: tuple[int, float] | None) -> Verdict | None:
    if found is None:
        return None
    step, distance = found
    return Verdict(cause, rung, why.format(step), {"apart": distance})


def _by_data(symptom: Symptom, ladder: Ladder) -> Verdict | None:
    if not ladder.lower_rates or not _free_on_other_data(symptom, ladder):
        return None
    # A rate that is too high needs some batch to strike at, and that batch is not to blame.
    # (Much lower ones learn too little on the way to tell.)
    if not symptom.shown_by(ladder.lower_rates[0][1]):
        return None
    tried = len(ladder.other_data)
    free = _free_of(symptom, ladder)
    return Verdict(
        "data",
        "data",
        f"on other batches {free} of {tried} replays of the same steps are free of it, and on "
        f"these it comes at {ladder.lower_rates[0][0]:g} of the learning rate too",
        {"free": float(free), "tried": float(tried)},
    )


def _by_rate(symptom: Symptom, ladder: Ladder) -> Verdict | None:
    if not symptom.shown_by(ladder.as_trained):
        return None
    free = [factor for factor, series in ladder.lower_rates if not symptom.shown_by(series)]
    if not free:
        return None
    elsewhere = "; it comes on other batches too" if ladder.other_data else ""
    if _free_on_other_data(symptom, ladder):
        elsewhere = "; only these batches bring it out"
    factor = working_rate(symptom, ladder.lower_rates) or min(free)
    more = f", and {factor:g} of it works" if factor != free[0] else ""
    tried = [1.0, *(f for f, series in ladder.lower_rates if not symptom.calm_in(series))]
    return Verdict(
        "hyper-parameter",
        "rate",
        f"it goes away with {free[0]:g} of the learning rate{more}{elsewhere}",
        {"factor": factor, "too_high": min(f for f in tried if f > factor)},
    )


def _free_on_other_data(symptom: Symptom, ladder: Ladder) -> bool:
    if not ladder.other_data or not symptom.shown_by(ladder.as_trained):
        return False
    return _free_of(symptom, ladder) >= _MOSTLY * len(ladder.other_data)


def _free_of(symptom: Symptom, ladder: Ladder) -> int:
    return sum(not symptom.shown_by(series) for series in ladder.other_data)


def _nothing_found(symptom: Symptom, ladder: Ladder) -> str:
    if symptom.kind == "none":
        said = f"nothing stands out at step {symptom.step}, and its figures were reproduced"
    elif not ladder.as_trained:
        said = "it was reproduced"
    else:
        said = "it was reproduced, and no change of data or learning rate takes it away"
    skipped = [_why_skipped(ladder, rung) for rung in ladder.skipped]
    return "; ".join([said, *skipped])


def _why_skipped(ladder: Ladder, rung: str) -> str:
    return f"{rung}: {ladder.skipped.get(rung, 'not tried')}"


def _changes(
    symptom: Symptom,
    ours: tuple[Series, ...],
    others: tuple[Series, ...] | None,
    rounding: Rounding,
    gross_after_update: float = _GROSS,
) -> tuple[int, float] | None:
    """(step, units of rounding) at which the others differ enough to change the answer."""
    worst: tuple[int, float] | None = None
    for a, b, is_after, distance in _distances(ours, others or (), rounding):
        if distance <= 1.0 or (worst is not None and distance <= worst[1]):
            continue
        gross = distance > (gross_after_update if is_after else _GROSS)
        if gross or symptom.kind == "none" or _explains(symptom, a, b):
            worst = (a.step, distance)
    return worst


def _explains(symptom: Symptom, a: Figures, b: Figures) -> bool:
    if a.finite != b.finite:
        return True
    gap = abs(symptom.measured(a) - symptom.measured(b))
    size = abs(symptom.reached - symptom.healthy)
    return gap >= HALF_WAY * size and size > 0


def _agrees(record: Figures, frames: tuple[Series, ...], rounding: Rounding) -> bool:
    """A replayed state gives the recorded figures: of its first step, or of the one after."""
    return any(
        apart(record, figures, rounding) <= (_AFTER_UPDATE if place else 1.0)
        for series in frames
        for place, figures in enumerate(series)
        if figures.step == record.step
    )


def _distances(
    ours: tuple[Series, ...], others: tuple[Series, ...], rounding: Rounding
) -> Iterator[tuple[Figures, Figures, bool, float]]:
    """Each step as two computed it from the same states, whether it comes after an update, and how
    far apart, in units of the rounding that it may show then.
    """
    for mine, theirs in zip(ours, others, strict=False):
        for place, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            yield a, b, place > 0, apart(a, b, rounding) / (_AFTER_UPDATE if place else 1.0)


def _furthest(a: tuple[Series, ...], b: tuple[Series, ...], rounding: Rounding) -> float:
    """Largest distance between two computations of the same states."""
    return max((distance for *_, distance in _distances(a, b, rounding)), default=0.0)


def _relative(a: float, b: float) -> float:
    size = max(abs(a), abs(b))
    return abs(a - b) / size if size else 0.0
