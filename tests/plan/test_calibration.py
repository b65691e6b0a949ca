import pytest

from longhaul.core.errors import UsageError
from longhaul.core.records import StepRecord
from longhaul.plan.calibration import (
    Calibration,
    calibration_of,
    fitted,
    measured_step,
    with_calibration,
)


def step(number, seconds, sequences=4):
    return StepRecord(
        attempt=1, segment="1.00", step=number, draw=0, next_draw=1, time=0.0, loss=1.0,
        gradient_norm=1.0, learning_rate=1.0, sequences=sequences, sequence_length=25,
        seconds=seconds,
    )  # fmt: skip


def test_a_step_is_the_median_of_the_last_shape_without_compilation():
    records = [step(n, {"training": 9.0}, sequences=2) for n in range(20)]
    records += [step(20, {"compile": 60.0, "training": 1.0})]
    records += [step(n, {"training": 0.3, "data_wait": 0.1, "evaluation": 5.0}) for n in range(21)]
    records += [step(50, {"training": 100.0})]
    assert measured_step(records) == (pytest.approx(0.4), 22)


def test_a_short_run_is_refused():
    with pytest.raises(UsageError, match="9 timed steps"):
        measured_step([step(n, {"training": 1.0}) for n in range(9)])
    with pytest.raises(UsageError, match="0 timed steps"):
        measured_step([])


def test_a_fit_finds_the_efficiency_that_a_time_was_made_with():
    assert fitted(lambda e: 1.0 + 2.0 / e, 1.0 + 2.0 / 0.37) == pytest.approx(0.37, rel=1e-4)


def test_what_products_cannot_explain_has_no_fit():
    assert fitted(lambda e: 1.0 + 0.1 / e, 0.9) is None
    assert fitted(lambda e: 1e-6 / e, 1.0) is None


def test_the_newest_of_a_device_and_format_counts_after_a_round_trip():
    old = Calibration("a100-80", "bf16", 0.5, 1.0, 20, "first")
    values = with_calibration({}, old)
    values = with_calibration(values, Calibration("a100-80", "fp32", 0.9, 1.0, 20, "other"))
    new = Calibration("a100-80", "bf16", 0.6, 1.0, 20, "second")
    values = with_calibration(values, new)
    assert len(values["calibrations"]) == 2
    assert calibration_of(values, "a100-80", "bf16") == new
    assert calibration_of(values, "h100", "bf16") is None


def test_a_damaged_file_says_so():
    with pytest.raises(UsageError, match="format 2 is not 1"):
        calibration_of({"format": 2}, "a100-80", "bf16")
    with pytest.raises(UsageError, match="calibrate again"):
        calibration_of({"format": 1, "calibrations": [{"device": "x"}]}, "a100-80", "bf16")
