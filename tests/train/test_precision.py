"""The fastest number format: what is chosen, and why."""

from itertools import count, cycle, repeat

import pytest
import torch

from longhaul.config.load import load_recipe
from longhaul.config.train import PrecisionSection
from longhaul.core.errors import LonghaulError
from longhaul.train import precision
from longhaul.train.precision import FLOAT32, autocast, choose_format, fastest_format

BF16, TF32 = "bf16", "TF32"


class Device:
    """Seconds of a pass by format; counts how often each was measured."""

    def __init__(self, seconds):
        self.seconds, self.asked = seconds, []

    def __call__(self, wanted):
        self.asked.append(wanted)
        return self.seconds[wanted]


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({FLOAT32: 4.0, BF16: 1.0}, BF16),  # AVX-512 with bf16 products, AMX
        ({FLOAT32: 1.0, BF16: 1.2}, FLOAT32),  # AVX-512 without
        ({FLOAT32: 1.0, BF16: 0.85}, FLOAT32),  # not worth its digits
        ({FLOAT32: 8.0, TF32: 2.0, BF16: 1.0}, BF16),
        ({FLOAT32: 8.0, TF32: 1.0, BF16: 1.5}, TF32),
        ({FLOAT32: 1.0, BF16: float("inf")}, FLOAT32),  # refused by the device
    ],
)
def test_the_fastest_clearly_faster_format_is_chosen(seconds, chosen):
    device = Device(seconds)
    others = tuple(wanted for wanted in seconds if wanted != FLOAT32)
    assert choose_format(others, device, lambda: 0.0).format == chosen


def test_an_emulated_format_is_dropped_at_first_sight():
    device = Device({FLOAT32: 1.0, BF16: 30.0})
    choice = choose_format((BF16,), device, lambda: 0.0)
    assert choice.format == FLOAT32
    assert device.asked.count(BF16) <= 2
    assert "nothing faster" in choice.reason


def test_measuring_ends_with_its_budget():
    device, clock = Device({FLOAT32: 0.1, BF16: 0.09}), count(step=0.1)
    choose_format((BF16,), device, lambda: next(clock))
    assert len(device.asked) <= 16


def test_measuring_ends_sooner_where_the_answer_is_clear():
    device = Device({FLOAT32: 4.0, BF16: 1.0})
    choose_format((BF16,), device, lambda: 0.0)
    assert len(device.asked) <= 8


def test_one_slow_pass_decides_nothing():
    """A neighbour's burst falls on some passes; the best of each format counts."""
    passes = {FLOAT32: repeat(1.0), BF16: cycle([0.5, 5.0, 9.0])}
    choice = choose_format((BF16,), lambda wanted: next(passes[wanted]), lambda: 0.0)
    assert choice.format == BF16


def test_this_device_is_measured_without_touching_the_run_s_random_numbers():
    recipe = load_recipe("quickstart", ["model.width=32", "batch.sequences=2"]).recipe
    before = torch.random.get_rng_state()
    choice = fastest_format(torch.device("cpu"), recipe)
    assert choice.format in (FLOAT32, BF16)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("has_kernels", [False, True])
def test_a_processor_without_kernels_for_bf16_is_not_tried_in_it(has_kernels, monkeypatch):
    """An emulated pass takes a second of every start."""
    recipe = load_recipe("quickstart", ["model.width=32", "batch.sequences=2"]).recipe
    device = Device({FLOAT32: 1.0, BF16: 30.0})
    monkeypatch.setattr(precision, "_products", lambda where, recipe: device)
    monkeypatch.setattr(precision, "_cpu_multiplies_bf16", lambda: has_kernels)
    assert fastest_format(torch.device("cpu"), recipe).format == FLOAT32
    assert (BF16 in device.asked) == has_kernels


def test_a_format_that_nobody_has_chosen_is_refused():
    with pytest.raises(LonghaulError, match="auto has not been measured"):
        autocast(torch.device("cpu"), PrecisionSection(compute="auto"))
