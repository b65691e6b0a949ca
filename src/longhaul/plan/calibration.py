"""The efficiency of a device, fitted to what a run really took; pure but for its JSON form."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from longhaul.core.clocks import STEP_BUCKETS
from longhaul.core.errors import UsageError
from longhaul.core.records import StepRecord
from longhaul.core.units import Seconds

_LOWEST, _HIGHEST, _HALVINGS = 1e-3, 4.0, 60
_FEWEST_STEPS = 10
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one run says of its device."""

    device: str
    element: str
    efficiency: float
    """Share of the best product that explains the run's step time."""
    step_s: Seconds
    steps: int
    run: str


def measured_step(records: Iterable[StepRecord]) -> tuple[Seconds, int]:
    """Median seconds of a step, and of how many steps: those that did not compile, of the last
    shape of the batch. A `UsageError` where there are fewer than ten.
    """
    shapes: dict[tuple[int, int], list[Seconds]] = {}
    last = None
    for record in records:
        if "compile" in record.seconds:
            continue
        took = sum(record.seconds.get(bucket, 0.0) for bucket in STEP_BUCKETS)
        if took > 0:
            last = record.sequences, record.sequence_length
            shapes.setdefault(last, []).append(took)
    steps = shapes[last] if last else []
    if len(steps) < _FEWEST_STEPS:
        raise UsageError(
            f"--calibrate: the run's journal has {len(steps)} timed steps of one shape",
            f"calibrate by a run of at least {_FEWEST_STEPS}",
        )
    return median(steps), len(steps)


def fitted(predict: Callable[[float], Seconds], step_s: Seconds) -> float | None:
    """The efficiency at which `predict` gives `step_s`, to 1e-4; None if none between 0.001 and 4
    does: then something else than products sets the time. `predict` falls with efficiency.
    """
    low, high = _LOWEST, _HIGHEST
    if not predict(high) <= step_s <= predict(low):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if predict(middle) > step_s else (low, middle)
    return low


def with_calibration(values: Mapping[str, Any], new: Calibration) -> dict[str, Any]:
    """The file's values with one more; a newer one of device and format replaces the older."""
    kept = [
        one for one in _entries(values) if (one.device, one.element) != (new.device, new.element)
    ]
    return {"format": FORMAT, "calibrations": [asdict(one) for one in [*kept, new]]}


def calibration_of(values: Mapping[str, Any], device: str, element: str) -> Calibration | None:
    """What the file says of a device and a format of products."""
    for one in _entries(values):
        if (one.device, one.element) == (device, element):
            return one
    return None


def _entries(values: Mapping[str, Any]) -> list[Calibration]:
    if values and values.get("format") != FORMAT:
        raise UsageError(
            f"calibration file: format {values.get('format')!r} is not {FORMAT}",
            "remove the file and calibrate again",
        )
    try:
        return [Calibration(**one) for one in values.get("calibrations", ())]
    except TypeError as error:
        raise UsageError(
            f"calibration file: {error}", "remove the file and calibrate again"
        ) from error
