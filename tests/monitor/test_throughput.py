import pytest

from longhaul.core.errors import LonghaulError
from longhaul.core.records import StepRecord
from longhaul.monitor.throughput import Throughput, mfu, peak_flops


def record(step: int, seconds: dict[str, float]) -> StepRecord:
    return StepRecord(
        attempt=1, segment="1.00", step=step, draw=0, next_draw=1, time=0.0, loss=1.0,
        gradient_norm=1.0, learning_rate=1.0, sequences=4, sequence_length=25, seconds=seconds,
    )  # fmt: skip


def test_only_time_spent_on_steps_counts_and_only_of_the_last_twenty():
    throughput = Throughput()
    assert throughput.tokens_per_second == throughput.seconds_per_step == 0
    throughput.see(record(1, {"training": 1000.0}))
    for step in range(2, 22):
        throughput.see(record(step, {"training": 0.3, "data_wait": 0.2, "evaluation": 7.0}))
    assert throughput.tokens_per_second == pytest.approx(200)
    assert throughput.seconds_per_step == pytest.approx(0.5)
    for step in range(22, 42):
        throughput.see(record(step, {"redone": 0.25}))
    assert throughput.tokens_per_second == pytest.approx(400)


def test_a_step_that_compiled_counts_neither_its_tokens_nor_its_time():
    throughput = Throughput()
    for step in range(1, 5):
        throughput.see(record(step, {"compile": 60.0, "training": 0.01}))
        throughput.see(record(step, {"training": 0.5}))
    assert throughput.tokens_per_second == pytest.approx(200)


def test_peaks_are_those_of_data_sheets():
    assert peak_flops("NVIDIA H100 80GB HBM3", "bf16") == 989e12
    assert peak_flops("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops("NVIDIA H100 NVL", "bf16_weights") == 835e12
    assert peak_flops("NVIDIA H200 NVL", "bf16") == 835e12
    assert peak_flops("NVIDIA GH200 480GB", "bf16") == peak_flops("NVIDIA H200", "bf16") == 989e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32") == 19.5e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32", tf32=True) == 156e12
    assert peak_flops("cpu", "float32") is None


def test_float8_is_held_against_its_own_peak():
    assert peak_flops("NVIDIA H100 80GB HBM3", "bf16", float8=True) == 1979e12
    assert peak_flops("NVIDIA H100 PCIe", "float32", tf32=True, float8=True) == 1513e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "bf16", float8=True) is None


def test_mfu_is_flops_of_the_model_over_the_peak():
    assert mfu(1e5, 8e8, 2e14) == pytest.approx(0.4)
    assert mfu(1e5, 8e8, None) is None


def test_more_than_the_peak_is_an_error():
    with pytest.raises(LonghaulError, match="120%"):
        mfu(3e5, 8e8, 2e14)
