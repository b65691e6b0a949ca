import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from longhaul.config.model import ModelSection
from longhaul.model.initialise import build
from longhaul.model.tap import Gauge, Tap

SETTINGS = ModelSection(layers=3, heads=2, width=16, context=8)
GAUGES = (Gauge("a", "nat", "max"), Gauge("b", "nat", "mean"), Gauge("c", "nat", "rms"))


def batch(seed: int) -> torch.Tensor:
    return torch.randint(21, (2, 8), generator=torch.Generator().manual_seed(seed))


def written(values: list[float]) -> dict[str, tuple[float, ...]]:
    tap = Tap(GAUGES, layers=2)
    for value in values:
        with tap.open_for_forward():
            for gauge in GAUGES:
                tap.write(1, gauge.name, torch.tensor(value))
    return tap.by_name(tap.drain())


def test_micro_batches_are_reduced_as_each_gauge_declares():
    readings = written([3.0, 5.0, 1.0])
    assert readings["a"] == (0.0, 5.0)
    assert readings["b"] == pytest.approx((0.0, 3.0))
    assert readings["c"] == pytest.approx((0.0, math.sqrt(35 / 3)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_reading_is_not_hidden_by_later_ones(bad):
    for reading in written([1.0, bad, 2.0]).values():
        assert not math.isfinite(reading[1])


def test_draining_starts_afresh():
    tap = Tap(GAUGES, layers=1)
    with tap.open_for_forward():
        tap.write(0, "b", torch.tensor(4.0))
    assert tap.drain()[0, 1] == 4.0
    assert not tap.drain().any()


def test_writing_into_a_closed_tap_does_nothing():
    tap = Tap(GAUGES, layers=1)
    for gauge in GAUGES:
        tap.write(0, gauge.name, torch.tensor(4.0))
    assert not tap.drain().any()


def test_a_closed_tap_takes_nothing_and_changes_no_bit_of_the_loss():
    model, tap = build(SETTINGS, 21, seed=0), Tap(build(SETTINGS, 21, seed=0).gauges, 3)
    closed = model(batch(0), batch(1), tap=tap)
    assert not tap.drain().any()
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
    readings = tap.by_name(tap.drain())
    for layer in range(3):
        for name in ("residual", "attention_out", "mlp_out"):
            both = torch.stack(seen[name, layer])
            assert readings[f"{name}_rms"][layer] == pytest.approx(
                both.square().mean().sqrt().item(), rel=1e-5
            )
        largest = torch.stack(seen["residual", layer]).abs().max().item()
        assert readings["residual_max_abs"][layer] == pytest.approx(largest, rel=1e-6)


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
