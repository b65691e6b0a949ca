import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from longhaul.config.model import ModelSection
from longhaul.model.initialise import build
from longhaul.model.tap import Gauge, Tap

SETTINGS = ModelSection(layers=3, heads=2, width=16, context=8)
GAUGES = (
    Gauge("a", "nat", "max"), Gauge("b", "nat", "mean"),
    Gauge("c", "nat", "rms"), Gauge("d", "nat", "min"),
    Gauge("whole", "nat", "min", per="model"),
)  # fmt: skip


def batch(seed: int) -> torch.Tensor:
    return torch.randint(21, (2, 8), generator=torch.Generator().manual_seed(seed))


def named(tap: Tap):
    return tap.by_name(tap.drain().tolist())


def written(values: list[float]) -> dict[str, float]:
    """Readings of the second layer, and of the model."""
    tap = Tap(GAUGES, layers=2)
    for value in values:
        with tap.open_for_forward():
            for name in "abcd":
                tap.write(name, torch.tensor(value), 1)
            tap.write("whole", torch.tensor(value))
    layers, totals = named(tap)
    assert layers["b"][0] == layers["c"][0] == 0
    return {name: row[1] for name, row in layers.items()} | totals


def test_micro_batches_are_reduced_as_each_gauge_declares():
    readings = written([3.0, 5.0, 1.0])
    assert (readings["a"], readings["d"], readings["whole"]) == (5.0, 1.0, 1.0)
    assert readings["b"] == pytest.approx(3.0)
    assert readings["c"] == pytest.approx(math.sqrt(35 / 3))


def test_extremes_are_those_of_the_readings_whatever_their_sign():
    assert written([-3.0, -2.0])["a"] == -2.0
    assert written([3.0, 2.0])["d"] == 2.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_reading_is_not_hidden_by_later_ones(bad):
    readings = written([1.0, bad, 2.0])
    if bad == math.inf:  # what is smallest is finite
        assert readings.pop("d") == readings.pop("whole") == 1.0
    assert not any(math.isfinite(reading) for reading in readings.values())


def test_draining_starts_afresh():
    tap = Tap(GAUGES, layers=1)
    fresh = tap.drain()
    with tap.open_for_forward():
        tap.write("b", torch.tensor(4.0))
        tap.keep_losses(torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool))
    assert tap.drain()[1] == 4.0
    assert torch.equal(tap.drain(), fresh)
    assert torch.equal(tap.drain_losses(), torch.full((2, 2), 3.0))
    assert tap.drain_losses().shape == (2, 0)


def test_writing_into_a_closed_tap_does_nothing():
    tap = Tap(GAUGES, layers=1)
    fresh = tap.drain()
    for gauge in GAUGES:
        tap.write(gauge.name, torch.tensor(4.0))
    tap.keep_losses(torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool))
    assert torch.equal(tap.drain(), fresh)
    assert tap.drain_losses().shape == (2, 0)


def test_a_closed_tap_takes_nothing_and_changes_no_bit_of_the_loss():
    model, tap = build(SETTINGS, 21, seed=0), Tap(build(SETTINGS, 21, seed=0).gauges, 3)
    fresh = tap.drain()
    closed = model(batch(0), batch(1), tap=tap)
    assert torch.equal(tap.drain(), fresh)
    with tap.open_for_forward():
        opened = model(batch(0), batch(1), tap=tap)
    assert torch.equal(closed, opened)
    assert torch.equal(closed, model(batch(0), batch(1)))


def test_gauges_equal_what_a_hook_sees():
    model, seen = build(SETTINGS, 21, seed=0), {}
    tap = Tap(model.gauges, layers=3)
    for layer, block in enumerate(model.blocks):
        for name, module in (
            ("residual", block),
            ("attention_out", block.attention),
            ("mlp_out", block.mlp),
        ):
            module.register_forward_hook(
                lambda _m, _i, out, key=(name, layer): seen.setdefault(key, []).append(out.double())
            )
    for seed in (0, 1):
        with tap.open_for_forward():
            model(batch(seed), tap=tap)
    readings, _ = named(tap)
    for layer in range(3):
        for name in ("residual", "attention_out", "mlp_out"):
            both = torch.stack(seen[name, layer])
            expected = {f"{name}_rms": both.square().mean().sqrt()}
            if name == "residual":
                expected |= {"residual_max": both.max(), "residual_min": both.min()}
            else:
                expected[f"{name}_max_abs"] = both.abs().max()
            for gauge, value in expected.items():
                assert readings[gauge][layer] == pytest.approx(value.item(), rel=1e-5), gauge


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_first_layer_that_is_not_finite_can_be_told(bad):
    model = build(SETTINGS, 21, seed=0)
    with torch.no_grad():
        model.blocks[1].mlp.down.weight[3, 5] = bad
    tap = Tap(model.gauges, layers=3)
    with tap.open_for_forward():
        model(batch(0), batch(1), tap=tap)
    readings, totals = named(tap)
    for name, row in readings.items():
        first = 2 if name.startswith("attention") else 1
        assert [math.isfinite(value) for value in row] == [n < first for n in range(3)], name
    assert not any(math.isfinite(value) for value in totals.values())


def test_recomputing_a_block_in_the_backward_pass_does_not_count_twice():
    model = build(SETTINGS, 21, seed=0)
    tap, again = Tap(model.gauges, 3), Tap(model.gauges, 3)
    passes = 0
    block, plain = model.blocks[1], model.blocks[1].forward

    def counted(*inputs):
        nonlocal passes
        passes += 1
        return plain(*inputs)

    with tap.open_for_forward():
        model(batch(0), batch(1), tap=tap).backward()
    block.forward = lambda *inputs: checkpoint(counted, *inputs, use_reentrant=False)
    with again.open_for_forward():
        loss = model(batch(0), batch(1), tap=again)
    loss.backward()
    assert passes == 2
    assert torch.equal(tap.drain(), again.drain())
