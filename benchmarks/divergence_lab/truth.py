"""What became of a run, from its losses and its undisturbed twin's alone.

Enters: losses by step, the twin's, the onset of the cause. Leaves: a `Truth`. Never knows:
gauges, detectors, or what was meant; a run that was meant to fail and did not is relabelled here.

Definitions, all of the loss smoothed by a centred median over 5 steps, which a lone spike does
not move:
    excess: the run's minus the twin's; twins share seed, data and every bit up to the onset.
    noise: 1.4826 × median |loss − smoothed loss| of the twin.
    margin: the larger of 0.25 nats and 3 × noise.
    The loss leaves its band at the first step from the onset on at which the excess is above the
    margin, or the loss is not finite.
    harmed: after that the excess reaches 2 × margin, or the loss is not finite.
    masked: the loss is not finite in one or two steps and stays in its band otherwise: the gate
    has held these updates back, and nothing is left to do. Neither harmed nor healthy.
    too good: at the end the loss is below the twin's, and it has come 2 × margin below the lowest
    that the twin ever reaches (to learn faster is no harm); only where the cause lies in the text.
    It leaves the band at 1 × margin.
    doubtful: it left the band, and did not reach that; or its twin is not sound itself. Counted
    neither as harmed nor as healthy.
A run without a cause is its own reference: its median over 9 steps must not rise above the lowest
such median since the last scheduled change (batch, length, mixture) by 0.5 nats or 4 × the noise
of a step (1.4826 × median |difference of neighbours| / √2), whichever is more; one that does is
`unplanned`. A twin must keep to that too.
A frozen group is judged by its weights, as the loss hardly tells: it is harmed if they did not
move. Everything else about it (that the loss stays in its band) is left to the reader.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Outcome = Literal[
    "in-band", "doubtful", "masked", "non-finite", "diverged", "spiked", "stalled", "too-good",
    "frozen", "unplanned",
]  # fmt: skip
HARMED: tuple[Outcome, ...] = (
    "non-finite", "diverged", "spiked", "stalled", "too-good", "frozen", "unplanned",
)  # fmt: skip
_HALF_WINDOW = 2
_LONG_HALF_WINDOW = 4
_LEAST_RISE = 0.5
_STEP_NOISES = 4.0
_RISE_NOISES = 2.5
_LEAST_MARGIN = 0.25
_NOISES = 3.0
_ENDING_STEPS = 10
_FEW_HOLES = 2
_SETTLING_STEPS = 15
"""Steps after a scheduled change in which a loss finds its new level."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What became of a run."""

    outcome: Outcome
    onset: int
    """First step that the cause touches; steps before it are healthy."""
    left_band: int | None
    """First step at which the loss is outside its band; None if it never is."""
    worst_excess: float
    """Largest distance from the reference after that, in nats."""
    margin: float

    @property
    def harmed(self) -> bool:
        """It counts for recall."""
        return self.outcome in HARMED

    @property
    def healthy(self) -> bool:
        """All of its steps count for false alarms."""
        return self.outcome == "in-band"


def smoothed(losses: Sequence[float], half_window: int = _HALF_WINDOW) -> list[float]:
    """Centred median; steps that are not finite are left out of their neighbours'."""
    out = []
    for place, loss in enumerate(losses):
        near = losses[max(0, place - half_window) : place + half_window + 1]
        finite = [value for value in near if math.isfinite(value)]
        out.append(statistics.median(finite) if finite and math.isfinite(loss) else loss)
    return out


def margin_of(losses: Sequence[float]) -> float:
    """Half the width of the band around a reference."""
    gaps = [abs(a - b) for a, b in zip(losses, smoothed(losses), strict=True) if math.isfinite(a)]
    return max(_LEAST_MARGIN, _NOISES * 1.4826 * statistics.median(gaps))


def step_noise(losses: Sequence[float]) -> float:
    """Standard deviation of a step's loss about the curve."""
    gaps = (abs(a - b) for a, b in pairwise(losses) if math.isfinite(a) and math.isfinite(b))
    return 1.4826 * statistics.median(gaps) / math.sqrt(2)


def judged_by_twin(
    losses: Sequence[float], twin: Sequence[float], onset: int, text_touched: bool = True
) -> Truth:
    """The truth about a run with a cause.

    Args:
        losses: of steps 1, 2, …
        twin: of the undisturbed twin.
        onset: first step that the cause touches.
        text_touched: the cause lies in the text; otherwise a low loss is no harm.
    """
    margin = margin_of(twin)
    run, reference = smoothed(losses), smoothed(twin)
    excess = [a - b for a, b in zip(run, reference, strict=True)]
    numbered = [(step, e) for step, e in enumerate(excess, start=1) if step >= onset]
    high = _first(step for step, e in numbered if not e <= margin)
    # Below anything that the twin ever reaches: to learn faster is no harm.
    floor = min(reference) - margin
    low = _first(step for step, loss in enumerate(run, start=1) if step >= onset and loss < floor)
    if holes := sum(not math.isfinite(loss) for loss in losses[onset - 1 :]):
        outside = sum(math.isfinite(e) and e > margin for _, e in numbered)
        masked: Outcome = "masked" if holes <= _FEW_HOLES and not outside else "non-finite"
        return Truth(masked, onset, high, math.inf, margin)
    if text_touched and low is not None and statistics.median(excess[-_ENDING_STEPS:]) < -margin:
        deepest = min(reference) - min(run)
        outcome: Outcome = "too-good" if deepest >= 2 * margin else "doubtful"
        return Truth(outcome, onset, low, deepest, margin)
    worst = max((e for _, e in numbered), default=0.0)
    if high is None:
        return Truth("in-band", onset, None, worst, margin)
    if worst < 2 * margin:
        return Truth("doubtful", onset, high, worst, margin)
    return Truth(_shape(losses, excess, margin), onset, high, worst, margin)


def judged_by_itself(losses: Sequence[float], stages: Sequence[object]) -> Truth:
    """The truth about a run without a cause.

    Args:
        losses: of steps 1, 2, …
        stages: what was scheduled at each step; the lowest loss is forgotten where it changes.
    """
    if any(not math.isfinite(loss) for loss in losses):
        first = next(n for n, loss in enumerate(losses, start=1) if not math.isfinite(loss))
        return Truth("unplanned", 1, first, math.inf, _LEAST_RISE)
    most = max(_LEAST_RISE, _STEP_NOISES * step_noise(losses))
    lowest, since, worst, left = math.inf, 0, 0.0, None
    run = smoothed(losses, _LONG_HALF_WINDOW)[:-_LONG_HALF_WINDOW]
    for step, loss in enumerate(run, start=1):
        if step > 1 and stages[step - 1] != stages[step - 2]:
            lowest, since = math.inf, step
        if step - since > _SETTLING_STEPS:
            lowest = min(lowest, loss)
            worst = max(worst, loss - lowest)
            left = step if left is None and worst > most else left
    outcome: Outcome = "in-band" if left is None else "unplanned"
    return Truth(outcome, 1, left, worst, most)


def _first(steps: Iterable[int]) -> int | None:
    return next(iter(steps), None)


def _shape(losses: Sequence[float], excess: Sequence[float], margin: float) -> Outcome:
    """Diverged: it ends high, and above its own past. Spiked: it came back. Stalled: it never
    rose; it only stayed behind.
    """
    end = statistics.median(excess[-_ENDING_STEPS:])
    if end <= margin:
        return "spiked"
    lowest, rise = math.inf, 0.0
    for loss in smoothed(losses, _LONG_HALF_WINDOW):
        lowest = min(lowest, loss)
        rise = max(rise, loss - lowest)
    return "diverged" if rise > max(margin, _RISE_NOISES * step_noise(losses)) else "stalled"
