"""The record of a step that is complete: its figures put in, and its share of the time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from longhaul.core.clocks import STEP_BUCKETS
from longhaul.core.records import StepRecord
from longhaul.core.units import Seconds
from longhaul.train.drain import Arrived
from longhaul.train.step import TrainingStep


def complete(
    arrived: Arrived[StepRecord],
    step: TrainingStep,
    now: Seconds,
    reached: int,
    seconds: Mapping[str, Seconds],
) -> StepRecord:
    """A record with what the device said of its step.

    Args:
        arrived: the record as it was begun, and the figures.
        step: that made it.
        now: Unix time.
        reached: updates that the host has queued by now.
        seconds: bucket → its share of the time since the record before it.
    """
    record, figures = arrived.tag, arrived.figures
    loss, gradient_norm, masked, *scale = figures[: step.num_figures]
    readings = step.readings(figures)
    return replace(
        record,
        time=now,
        lag_steps=reached - record.step,
        loss=loss,
        gradient_norm=gradient_norm,
        masked=bool(masked),
        loss_scale=scale[0] if scale else None,
        loss_scale_at_floor=bool(scale and scale[1]),
        gauges=readings.gauges,
        totals=readings.totals,
        source_losses=readings.source_losses,
        seconds=seconds,
    )


def dealt_out(seconds: Mapping[str, Seconds], shares: Sequence[float]) -> list[dict[str, Seconds]]:
    """Seconds that were booked until several steps were seen complete, step by step.

    The sums per bucket stay what they were (DESIGN rule 11). What the steps themselves took
    (`STEP_BUCKETS`) is shared; the rest, such as an evaluation, came before the first of them.

    Args:
        seconds: bucket → seconds of all of them.
        shares: of the steps; they add up to 1.
    """
    dealt: list[dict[str, Seconds]] = [{} for _ in shares]
    for bucket, whole in seconds.items():
        own = shares if bucket in STEP_BUCKETS else (1.0,)
        left = whole
        for of_step, share in zip(dealt[: len(own) - 1], own[:-1], strict=True):
            of_step[bucket] = round(whole * share, 6)
            left -= of_step[bucket]
        dealt[len(own) - 1][bucket] = round(left, 6)
    return dealt
